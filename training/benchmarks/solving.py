"""The cost of a forward solve over the cost of its evaluations."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

import deq_keras

from .timing import Ratio, compare

PLAIN_LOOP = "plain_loop"
SOLVERS = ("fixed_point_iteration", "anderson", "broyden")


class SolveCost(NamedTuple):
    """The cost of one solver at one budget.

    Attributes:
        ratio: `Ratio` of a solve to as many compiled calls of f.
        num_evaluations: int. How often the solve evaluated f.
        num_diverged: int. Samples of which an evaluation was not finite; `None` for
            the plain loop, which does not look.
        residual: float. The median sample's relative residual at the end, or `None`.
    """

    ratio: Ratio
    num_evaluations: int
    num_diverged: int | None = None
    residual: float | None = None


def exact_solver(name, num_evaluations):
    """Returns the library's solver with its defaults, for an exact budget.

    A tolerance of zero keeps the work of stopping and of the best iterate in the
    measurement, which `tol=None` would leave out.
    """
    config = {"class_name": name, "max_iter": num_evaluations, "tol": 0.0}
    return deq_keras.solvers.get(config)


def layer(cell, solver, gradient="implicit"):
    """Returns the layer that is measured: a cell, solved and not regularised."""
    return deq_keras.layers.DEQ(
        cell,
        solver=solver,
        gradient=gradient,
        regularizer=None,
        dtype=cell.dtype_policy,
        name="deq",
    )


def solve_cost(workload, cell, name, num_evaluations, effort):
    """Measures one solver at one budget.

    Args:
        workload: a `workloads.Workload`.
        cell: its `CompiledCell`. If XLA compiled it, XLA compiles the solve as well.
        name: one of `SOLVERS`, or `PLAIN_LOOP` for a bare `tf.while_loop`, the floor
            of what a solver in TensorFlow can reach.
        num_evaluations: int. The budget.
        effort: a `timing.Effort`.

    Returns:
        A `SolveCost`.

    Raises:
        RuntimeError: if the solver did not spend exactly its budget.
    """
    search = _plain_loop if name == PLAIN_LOOP else _solve
    solve = tf.function(
        search(workload.cell, name, num_evaluations), jit_compile=cell.jit_compile
    )
    arguments = tf.zeros_like(workload.injection), workload.injection
    compiled = solve.get_concrete_function(*arguments)

    def evaluate():
        for _ in range(num_evaluations):
            cell.evaluate()

    facts = {}
    if name != PLAIN_LOOP:
        facts = _facts(compiled(*arguments), name, num_evaluations)
    ratio = compare(lambda: compiled(*arguments), evaluate, effort)
    return SolveCost(ratio, num_evaluations, **facts)


def _solve(cell, name, num_evaluations):
    deq = layer(cell, exact_solver(name, num_evaluations))
    return lambda state, injection: deq.solve_injection(injection, state)


def _plain_loop(cell, name, num_evaluations):
    def loop(state, injection):
        return tf.while_loop(
            lambda count, z: count < num_evaluations,
            lambda count, z: (count + 1, cell(z, injection)),
            (tf.constant(0), state),
        )

    return loop


def _facts(solution, name, num_evaluations):
    spent = int(solution.batch_evaluations)
    if spent != num_evaluations:
        raise RuntimeError(
            "A solve must spend exactly its budget, or its cost means nothing. "
            f"Received: {spent} of {num_evaluations} evaluations by {name}."
        )
    diverged = solution.status == deq_keras.solvers.DIVERGED
    return {
        "num_diverged": int(tf.math.count_nonzero(diverged)),
        "residual": float(np.median(solution.residual)),
    }
