"""Losses on states along a solve."""

from collections.abc import Callable, Sequence
from typing import Any

from deq_keras.core.checks import (
    check_choice,
    check_count,
    check_fraction,
    check_positive_fraction,
)
from deq_keras.core.structure import Nest

__all__ = ["correction_weights", "fixed_point_correction"]

_SCHEDULES = ("exponential", "linear", "constant")


def fixed_point_correction(
    states: Sequence[Nest],
    loss_fn: Callable[[Nest], Any],
    schedule: str = "exponential",
    gamma: float | None = None,
) -> Any:
    """Returns the weighted sum of the losses of states along a solve.

        loss = sum_k w_k loss_fn(z_k)    with the weights of `correction_weights`

    The loss corrects a solve before its end, so that few evaluations already reach a
    good state. Each of n calls of the layer continues from the previous state.

    Args:
        states: List of n nests of tensors `(batch, ...)`, the last one last.
        loss_fn: Function of a state that returns a tensor: the loss of the batch, or
            one loss for each sample. It contains the head of the model and the targets.
        schedule: See `correction_weights`. Defaults to `"exponential"`.
        gamma: See `correction_weights`. Defaults to `None`.

    Returns:
        A tensor like the results of `loss_fn`.

    Raises:
        ValueError: If `states` is not a list or tuple with at least one state.

    Example:

    >>> deq = deq_keras.DEQ(deq_keras.layers.DenseCell(16))
    >>> x, states = np.ones((2, 3), "float32"), []
    >>> for _ in range(3):
    ...     start = states[-1] if states else None
    ...     states.append(deq(x, initial_state=start, max_iter=4, training=True))
    >>> loss = deq_keras.losses.fixed_point_correction(
    ...     states, lambda state: keras.ops.mean(keras.ops.square(state - 1.0))
    ... )
    >>> loss.shape
    TensorShape([])

    Reference:

    - Bai et al. (2022), "Deep Equilibrium Optical Flow Estimation".
    """
    if not isinstance(states, list | tuple) or not states:
        raise ValueError(
            "`states` must be a list with at least one state. Collect the results of "
            "calls such as deq(inputs, initial_state=states[-1], max_iter=4). "
            f"Received: states of type {type(states).__name__}."
        )
    weights = correction_weights(len(states), schedule, gamma)
    first, *rest = (
        weight * loss_fn(state) for weight, state in zip(weights, states, strict=True)
    )
    return sum(rest, start=first)


def correction_weights(
    num_states: int, schedule: str = "exponential", gamma: float | None = None
) -> list[float]:
    """Returns the weights of a fixed-point correction, which sum to 1.

    They are the `loss_weights` of `compile` for a model whose outputs belong to states
    along a solve. State k of n, from 0, has the weight

        exponential    gamma^(n - k - 1)
        linear         1 - gamma (n - k - 1) / n
        constant       1

    divided by the sum over all states. (torchdeq does not divide. Its six exponential
    weights sum to 3.69, which also scales the learning rate of plain gradient descent.)

    Args:
        num_states: Positive integer n.
        schedule: `"exponential"`, `"linear"` or `"constant"`. Defaults to
            `"exponential"`.
        gamma: Float in (0, 1] for exponential weights, in [0, 1] for linear ones.
            Constant weights do not use it. Defaults to `None`: 0.8 and 0.9, as in
            torchdeq.

    Example:

    >>> deq_keras.losses.correction_weights(2, gamma=0.25)
    [0.2, 0.8]
    """
    n = check_count("num_states", num_states)
    schedule = check_choice("schedule", schedule, _SCHEDULES)
    if schedule == "exponential":
        ratio = check_positive_fraction("gamma", 0.8 if gamma is None else gamma)
        weights = [ratio ** (n - k - 1) for k in range(n)]
    elif schedule == "linear":
        slope = check_fraction("gamma", 0.9 if gamma is None else gamma)
        weights = [1.0 - slope * (n - k - 1) / n for k in range(n)]
    elif gamma is None:
        weights = [1.0] * n
    else:
        raise ValueError(
            "Constant weights have no `gamma`. Remove it, or use schedule='exponential'"
            f" or 'linear'. Received: {schedule=}, {gamma=}."
        )
    total = sum(weights)
    return [weight / total for weight in weights]
