"""The states that a solve passes through."""

import copy
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_count
from deq_keras.core.structure import Nest, StateStructure
from deq_keras.diagnostics.subject import encoder, single_layer
from deq_keras.solvers import Evaluation, FixedPointSolver, SolveRequest


def iterates(model: Any, inputs: Nest, max_iter: int) -> Nest:
    """Returns f(z) after each evaluation of a solve without a tolerance.

    A solve with a tolerance returns one of these states, and a solve with `tol=None`
    the last of its budget. Runs eagerly.

    Args:
        model: `DEQ` layer, or a functional or sequential model with one.
        inputs: Inputs of the model.
        max_iter: Positive integer. Number of evaluations.

    Returns:
        Nest of tensors `(max_iter, batch, ...)`.

    Raises:
        ValueError: If the model does not have exactly one `DEQ` layer.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8))
    >>> states = deq_keras.diagnostics.iterates(deq, np.ones((2, 3), "float32"), 5)
    >>> states.shape
    TensorShape([5, 2, 8])
    """
    max_iter = check_count("max_iter", max_iter)
    encode, layer = encoder(model), single_layer(model)
    states: list[Nest] = []
    problem = layer.problem(encode(inputs))
    request = layer.request(problem)
    solve_and_observe(
        layer.solver,
        problem,
        request,
        max_iter,
        lambda state, *_: states.append(state),
    )
    return tree.map_structure(lambda *leaves: tf.stack(leaves), *states[:max_iter])


def solve_and_observe(
    solver: FixedPointSolver,
    problem: Any,
    request: SolveRequest,
    max_iter: int | tf.Tensor,
    observe: Callable[[Nest, Evaluation, tf.Tensor], None],
) -> None:
    """Solves without a tolerance, and observes each evaluation.

    Args:
        solver: A `FixedPointSolver`.
        problem: A `FixedPointProblem`.
        request: A `SolveRequest` with an initial state.
        max_iter: Positive integer or scalar tensor. Number of evaluations.
        observe: Function of the state f(z), the `Evaluation` and the number of
            evaluations so far. Some solvers call it once more, beyond the budget.
    """
    structure = StateStructure(request.initial_state)
    observed = copy.copy(solver)
    observed.tol = None
    observed.compact = False

    def step(evaluation: Evaluation, memory: Any, count: tf.Tensor) -> Any:
        iterate = structure.to_state(evaluation.value)
        observe(solver.state_of(problem, iterate), evaluation, count)
        return solver.step(evaluation, memory, count)

    vars(observed)["step"] = step
    # Steps follow all evaluations but the last.
    observed.solve(problem, request._replace(max_iter=max_iter + 1, tol=None))
