"""Batches of samples of different difficulty, solved together and compactly."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

import deq_keras

from .. import workloads
from ..timing import Ratio, compare

SOLVERS = ("fixed_point_iteration", "anderson", "broyden")
_TOL = 1e-3
_MAX_ITER = 60


def _a_quarter_is_hard(count):
    return np.where(np.arange(count) % 4 == 0, 1.0, 0.15)


def _long_tail(count):
    """Most are done soon, few need very many evaluations."""
    return np.linspace(0.0, 1.0, count) ** 4


CASES = {
    "conv_block, a quarter hard": ("conv_block", _a_quarter_is_hard),
    "transformer_layer, long tail": ("transformer_layer", _long_tail),
}


class Cost(NamedTuple):
    """The cost of a compact solve.

    Attributes:
        time: `Ratio` of it to the masked loop.
        rows: float. Evaluations of a sample over those that the samples needed.
        masked_rows: float. The same of the masked loop.
        median_evaluations: float. Of a sample.
        most_evaluations: int. Of a sample.
    """

    time: Ratio
    rows: float
    masked_rows: float
    median_evaluations: float
    most_evaluations: int


def costs(effort, names=tuple(CASES), solvers=SOLVERS, **build_arguments):
    """Returns the `Cost` of every case and solver."""
    results = {}
    for name in names:
        workload_name, difficulties = CASES[name]
        workload = workloads.build(workload_name, **build_arguments)
        problem = Problem(workload, difficulties)
        for solver in solvers:
            results[f"{name}, {solver}"] = problem.cost(solver, effort)
    return results


class Problem:
    """A workload in which each sample has a difficulty of its own.

        f_b(z) = difficulty_b cell(z, x)

    An evaluation costs what one of the cell does, and df/dz is as much smaller.

    Args:
        workload: a `workloads.Workload`.
        difficulties: function of the number of samples that returns theirs.
    """

    def __init__(self, workload, difficulties):
        self.cell = workload.cell
        state = workload.injection
        shape = [-1] + [1] * (len(state.shape) - 1)
        difficulty = difficulties(state.shape[0]).reshape(shape)
        self.injection = {
            "inputs": workload.injection,
            "difficulty": tf.constant(difficulty, state.dtype),
        }
        self.state = tf.zeros_like(state)
        self.num_rows = tf.Variable(0)

    def cost(self, name, effort):
        """Returns the `Cost` of a solver."""
        solves = {}
        for is_compact in (False, True):
            solver = deq_keras.solvers.get(
                {
                    "class_name": name,
                    "max_iter": _MAX_ITER,
                    "tol": _TOL,
                    "compact": is_compact,
                }
            )
            solves[is_compact] = tf.function(_solve(solver, self._evaluate, self.state))
        masked = solves[False](self.injection)
        needed = int(tf.reduce_sum(masked.num_evaluations))
        batch_size = self.state.shape[0]
        return Cost(
            compare(
                lambda: solves[True](self.injection),
                lambda: solves[False](self.injection),
                effort,
            ),
            rows=self._rows(solver) / needed,
            masked_rows=int(masked.batch_evaluations) * batch_size / needed,
            median_evaluations=float(np.median(masked.num_evaluations)),
            most_evaluations=int(tf.reduce_max(masked.num_evaluations)),
        )

    def _evaluate(self, state, injection):
        return injection["difficulty"] * self.cell(state, injection["inputs"])

    def _counted(self, state, injection):
        self.num_rows.assign_add(tf.shape(state)[0])
        return self._evaluate(state, injection)

    def _rows(self, solver):
        """Returns how often a compact solve evaluates a sample."""
        self.num_rows.assign(0)
        tf.function(_solve(solver, self._counted, self.state))(self.injection)
        return int(self.num_rows)


def _solve(solver, evaluate, state):
    def solve(injection):
        return solver.solve(
            deq_keras.solvers.RowFunction(evaluate, injection, _rows_of), state
        )

    return solve


def _rows_of(injection, rows):
    return {name: tf.gather(leaf, rows) for name, leaf in injection.items()}
