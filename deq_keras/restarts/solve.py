"""Solves each sample from several initial states and selects one result."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from deq_keras.checks import check_count
from deq_keras.core.problem import masked
from deq_keras.draws import as_seed
from deq_keras.restarts.restart_states import starting_states
from deq_keras.restarts.rows import repeat_rows
from deq_keras.restarts.selected_solution import SelectedSolution
from deq_keras.restarts.selection import Selection
from deq_keras.solvers import Solution, SolveRequest
from deq_keras.structure import Nest


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
    layer's start, if it is random, or from N(0, 1); all samples share the draws, and
    XLA draws different numbers. All restarts form one batch with one injection.

    Args:
        layer: A `DEQ` layer.
        inputs: Inputs of the layer.
        restarts: Positive integer. Number of solves per sample.
        select: `"residual"`, `"vote"` or a function; see `Selection`. Defaults to
            `"residual"`.
        answer: Optional function from an equilibrium to what is read off it. `"vote"`
            requires it; see `Selection`. Defaults to `None`.
        request: A `SolveRequest`; see `DEQ.request`. Without a seed, the draws follow
            from the seed of the layer, or from 0. Defaults to `None`.
        mask: See the call arguments of `DEQ`. Defaults to `None`.

    Returns:
        A `SelectedSolution`.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16))
    >>> selected = deq_keras.restarts.solve(deq, np.ones((2, 3), "float32"), restarts=4)
    >>> selected.agreement.numpy()
    array([1., 1.], dtype=float32)
    """
    restarts = check_count("restarts", restarts)
    selection = Selection(select, answer)
    problem = layer.problem(inputs, mask)
    seed = None if request is None else request.seed
    request = layer.request(problem, request)
    state = repeat_rows(request.initial_state, restarts)
    batch_size = tf.shape(tf.nest.flatten(request.initial_state)[0])[0]
    problem = problem.rows(repeat_rows(tf.range(batch_size), restarts))
    seed = as_seed((layer.seed or 0) if seed is None else seed)
    state = masked(starting_states(layer.start, state, restarts, seed), problem.mask)
    solution = layer.solver.solve(problem, request._replace(initial_state=state))
    return selection(solution, restarts)
