"""Predictions of a model at several budgets of evaluations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from deq_keras.core.checks import check_counts
from deq_keras.core.structure import Nest, interpolate
from deq_keras.diagnostics.weight_tied_model import WeightTiedModel
from deq_keras.solvers import FixedPointIteration, SolveRequest

# `overthinking` compares a budget with this multiple of it.
_FACTOR = 10


class AnswersByBudget(NamedTuple):
    """The result of `answers_by_budget`.

    Attributes:
        answers: Int32 tensor `(budgets, batch, ...)`. Predictions at each budget.
        residual: Float tensor `(largest budget, batch)`. Residual of each evaluation.
            NaN where a sample was no longer finite.
    """

    answers: tf.Tensor
    residual: tf.Tensor

    def right(self, targets: Any, weight: Any = None) -> np.ndarray:
        """Returns a mask of fully correct samples, bool `(budgets, batch)`.

        Args:
            targets: Integer array `(batch, ...)`. Classes.
            weight: Optional array that broadcasts to `targets`. Positions with weight
                zero are ignored. Defaults to `None`.
        """
        is_right = np.asarray(self.answers) == np.asarray(targets)
        if weight is not None:
            is_right |= np.broadcast_to(weight, is_right.shape[1:]) == 0
        return is_right.reshape(*is_right.shape[:2], -1).all(axis=-1)


def answers_by_budget(
    model: WeightTiedModel,
    inputs: Nest,
    budgets: Sequence[int],
    damping: float = 1.0,
    stop_mode: str = "rel",
    initial_state: Nest | None = None,
) -> AnswersByBudget:
    """Returns a model's predictions at several budgets, from a single solve.

    Iterates up to the largest budget like `FixedPointIteration(damping=damping,
    tol=None)` and predicts from the state at each budget. The curve shows how accuracy
    changes with further evaluations.

    Args:
        model: A `WeightTiedModel`.
        inputs: Inputs of the model's encoder.
        budgets: Increasing positive integers. Numbers of evaluations.
        damping: Float in (0, 1]. See `FixedPointIteration`. Defaults to `1.0`.
        stop_mode: String. Defines the residual; see `FixedPointSolver`. Defaults to
            `"rel"`.
        initial_state: Nest. The initial state. Defaults to `None`, which uses the
            model's initial state.

    Returns:
        An `AnswersByBudget`.

    Example:

    >>> model = deq_keras.diagnostics.WeightTiedModel(lambda z, u: 0.5 * z + u)
    >>> inputs = np.array([[1.0, 3.0], [2.0, 0.0]], "float32")
    >>> curve = deq_keras.diagnostics.answers_by_budget(model, inputs, [1, 4])
    >>> curve.right(targets=[1, 1]).mean(axis=1)
    array([0.5, 0.5])
    """
    checked = check_counts("budgets", budgets)
    if list(checked) != sorted(set(checked)):
        raise ValueError(f"`budgets` must increase. Received: budgets={list(budgets)}.")
    solver = FixedPointIteration(tol=None, damping=damping, stop_mode=stop_mode)
    injection = model.inject(inputs)
    state = model.initial_state(injection) if initial_state is None else initial_state
    answers, residuals = [], []
    for before, budget in zip((0, *checked), checked, strict=False):
        solution = solver.solve(
            lambda state: model.step(state, injection),
            SolveRequest(state, max_iter=budget - before),
        )
        answers.append(model.answer(solution.value))
        residuals.append(solution.trace)
        # The solution is the last evaluation; continue at the iterate that follows it.
        state = solution.value
        if solver.damping < 1.0:
            state = interpolate(solution.point, state, solver.damping)
    return AnswersByBudget(tf.stack(answers), tf.concat(residuals, axis=0))


def overthinking(budgets: Sequence[int], accuracy: Sequence[float]) -> float:
    """Returns the accuracy lost from the best budget to ten times this budget.

    A model that converges keeps its accuracy, so the loss is 0. A model trained for a
    fixed number of steps can be accurate there and degrade later (Bansal et al., 2022).
    The best budget is the smallest one with the highest accuracy, among the budgets
    whose tenfold was measured too.

    Args:
        budgets: Positive integers. Numbers of evaluations. At least one must be ten
            times another.
        accuracy: Floats. Accuracy at each budget.

    Returns:
        Float in the unit of `accuracy`. Negative if the model still improves.

    Raises:
        ValueError: If no budget is ten times another.

    Example:

    >>> round(deq_keras.diagnostics.overthinking([5, 50, 500], [0.7, 1.0, 0.4]), 3)
    0.6
    """
    budgets = check_counts("budgets", list(budgets))
    if len(accuracy) != len(budgets):
        raise ValueError(
            "`accuracy` must have one number for each budget. Received: "
            f"{len(accuracy)} of them for budgets={list(budgets)}."
        )
    measured = dict(zip(budgets, map(float, accuracy), strict=True))
    candidates = [b for b in sorted(measured) if _FACTOR * b in measured]
    if not candidates:
        raise ValueError(
            f"`budgets` must contain a budget and {_FACTOR} times that budget, such as "
            f"[10, 20, 100, 200]. Received: budgets={list(budgets)}."
        )
    best = candidates[np.argmax([measured[budget] for budget in candidates])]
    return measured[best] - measured[_FACTOR * best]
