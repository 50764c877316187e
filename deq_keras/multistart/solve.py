"""Solves each sample from several initial states and selects one result."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_count
from deq_keras.core.random import as_seed, fold_in
from deq_keras.core.structure import Nest, masked
from deq_keras.initial_states import InitialState, Normal
from deq_keras.multistart.rows import repeat_rows
from deq_keras.multistart.selection import SelectedSolution, Selection
from deq_keras.solvers import Solution, SolveRequest


def solve(
    layer: Any,
    inputs: Nest,
    restarts: int,
    select: str | Callable[[Solution], tf.Tensor] = "residual",
    answer: Callable[[Nest], Nest] | None = None,
    request: SolveRequest | None = None,
    mask: Nest | None = None,
) -> SelectedSolution:
    """Solves each sample of a `DEQ` layer from several states and selects one result.

    The first restart starts where the layer does. The others start at draws from the
    layer's `initial_state`, if it is random, or from N(0, 1). All samples share the
    draws. XLA draws different numbers. All restarts form one batch with one injection.

    Args:
        layer: A `DEQ` layer.
        inputs: Inputs of the layer.
        restarts: Positive integer. Number of solves per sample.
        select: `"residual"`, `"vote"` or a function; see `Selection`. Defaults to
            `"residual"`.
        answer: Optional function from an equilibrium to answers. `"vote"` requires it;
            see `Selection`. Defaults to `None`.
        request: A `SolveRequest`; see `DEQ.request`. Without a seed, the seed of the
            layer, or else 0, determines the draws. Defaults to `None`.
        mask: See the call arguments of `DEQ`. Defaults to `None`.

    Returns:
        A `SelectedSolution`.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16))
    >>> inputs = np.ones((2, 3), "float32")
    >>> selected = deq_keras.multistart.solve(deq, inputs, restarts=4)
    >>> selected.agreement.numpy()
    array([1., 1.], dtype=float32)
    """
    restarts = check_count("restarts", restarts)
    selection = Selection(select, answer)
    problem = layer.problem(inputs, mask)
    seed = None if request is None else request.seed
    request = layer.request(problem, request)
    state = repeat_rows(request.initial_state, restarts)
    batch_size = tf.shape(tree.flatten(request.initial_state)[0])[0]
    problem = problem.rows(repeat_rows(tf.range(batch_size), restarts))
    seed = as_seed((layer.seed or 0) if seed is None else seed)
    state = multistart_states(layer.initial_state, state, restarts, seed)
    state = masked(state, problem.mask)
    solution = layer.solver.solve(problem, request._replace(initial_state=state))
    return selection(solution, restarts)


def multistart_states(
    initial_state: InitialState, state: Nest, num_restarts: int, seed: tf.Tensor
) -> Nest:
    """Returns `state` with random states for all restarts except the first.

    The states are drawn from the `random_part` of `initial_state`, or from N(0, 1) if
    it is not random. All samples share the draws, so that the rest of the batch and the
    order of its samples do not affect a result.

    Args:
        initial_state: A `deq_keras.initial_states.InitialState`.
        state: Nest of tensors `(num_restarts * batch, ...)`: the batch of the first
            restart, then the batch of the second, and so on.
        num_restarts: Positive integer.
        seed: Int32 tensor of shape `(2,)`. The seed of the solve.

    Returns:
        A nest like `state`.

    Example:

    >>> initial_state = deq_keras.initial_states.FromCell()
    >>> states = deq_keras.multistart.multistart_states(
    ...     initial_state, tf.zeros((6, 4)), num_restarts=3, seed=tf.constant([0, 0])
    ... )
    >>> np.unique(states, axis=0).shape
    (3, 4)
    """
    if num_restarts == 1:
        return state
    num_rows = tree.flatten(state)[0].shape[0]
    if num_rows is not None and num_rows % num_restarts:
        raise ValueError(
            "The inputs must contain all samples once per restart. Repeat them with "
            "`deq_keras.multistart.repeat_rows(inputs, restarts)`. Received: "
            f"{num_rows} samples, restarts={num_restarts}."
        )
    # Slices of zeros: the batch may be empty.
    others = tree.map_structure(lambda leaf: tf.zeros_like(leaf[1:num_restarts]), state)
    # A solve draws its initial state and its noise with 0 and 1.
    drawn = (initial_state.random_part or Normal())(others, fold_in(seed, 2))

    def with_drawn(leaf: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
        batch_size = tf.shape(leaf)[0] // num_restarts
        repeated = tf.repeat(drawn, batch_size, axis=0)  # (restarts - 1) * batch
        result = tf.concat([leaf[:batch_size], repeated], axis=0)
        return tf.ensure_shape(result, leaf.shape)

    return tree.map_structure(with_drawn, state, drawn)
