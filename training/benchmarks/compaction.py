"""`deq-keras benchmark compaction`, `splittings` and `options`: the loop around f.

Compaction: the time ratio of a compact solve to the masked loop, on batches whose
samples need different numbers of evaluations, and the number of evaluations per sample
in each loop. Splittings: the time ratio of a Peaceman-Rachford solve to a bare loop of
as many of its steps, both with a precomputed resolvent. Options: the time ratio of a
call with an option of a layer to the call without.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

import deq_keras

from . import workloads
from .costs import SOLVERS, check_budget_is_spent, compiled_solve, layer
from .measuring import compare
from .runner import Benchmark

_TOL = 1e-3
_MAX_ITER = 60


def _quarter_is_hard(count):
    return np.where(np.arange(count) % 4 == 0, 1.0, 0.15)


def _long_tail(count):
    """Returns difficulties with a long tail: few samples need many evaluations."""
    return np.linspace(0.0, 1.0, count) ** 4


_CASES = {
    "conv_block, a quarter hard": ("conv_block", _quarter_is_hard),
    "transformer_layer, long tail": ("transformer_layer", _long_tail),
}


def compact_costs(effort, names=tuple(_CASES), solvers=SOLVERS, **build_arguments):
    """Returns the cost of compact solves, by case and solver; see `_compact_cost`."""
    results = {}
    for name in names:
        workload_name, difficulties = _CASES[name]
        workload = workloads.build(workload_name, **build_arguments)
        for solver in solvers:
            cost = _compact_cost(workload, difficulties, solver, effort)
            results[f"{name}, {solver}"] = cost
    return results


def _compact_cost(workload, difficulties, name, effort):
    """Returns the cost of solving samples of different difficulty compactly.

        f_b(z) = difficulty_b cell(z, x)

    An evaluation costs as much as one of the cell. The difficulty scales df/dz.

    Args:
        workload: `workloads.Workload`.
        difficulties: Function of the number of samples that returns an array.
        name: String. The solver.
        effort: `measuring.Effort`.

    Returns:
        A dict: `time`, the `Ratio` to the masked loop; `rows` and `masked_rows`, the
        evaluations of samples in each loop, over the evaluations that samples needed;
        `median_evaluations` and `most_evaluations` of a sample.
    """
    inputs = workload.injection
    shape = [-1] + [1] * (len(inputs.shape) - 1)
    difficulty = difficulties(inputs.shape[0]).reshape(shape)
    injection = {
        "inputs": inputs,
        "difficulty": tf.constant(difficulty, inputs.dtype),
    }
    num_rows = tf.Variable(0)

    def evaluate(state, injection):
        return injection["difficulty"] * workload.cell(state, injection["inputs"])

    def count_and_evaluate(state, injection):
        num_rows.assign_add(tf.shape(state)[0])
        return evaluate(state, injection)

    def solve(is_compact, function):
        solver = {"class_name": name, "max_iter": _MAX_ITER, "tol": _TOL}
        solver = deq_keras.solvers.get({**solver, "compact": is_compact})
        compiled = tf.function(
            lambda injection: solver.solve(
                deq_keras.solvers.FixedPointProblem(
                    function, injection, has_rows=dict.fromkeys(injection, True)
                ),
                deq_keras.solvers.SolveRequest(tf.zeros_like(inputs)),
            )
        )
        return functools.partial(compiled, injection)

    masked, compact = solve(False, evaluate), solve(True, evaluate)
    solution = masked()
    needed = int(tf.reduce_sum(solution.num_evaluations))
    solve(True, count_and_evaluate)()
    return {
        "time": compare(compact, masked, effort),
        "rows": int(num_rows) / needed,
        "masked_rows": int(solution.batch_evaluations) * inputs.shape[0] / needed,
        "median_evaluations": float(np.median(solution.num_evaluations)),
        "most_evaluations": int(tf.reduce_max(solution.num_evaluations)),
    }


_MONOTONE_CELLS = {
    "dense": (deq_keras.layers.MonotoneDenseCell, {"units": 87}, (64,)),
    "convolution": (deq_keras.layers.MonotoneConvCell, {"filters": 32}, (16, 16, 3)),
    "multiscale": (
        deq_keras.layers.MonotoneMultiscaleCell,
        {"filters": (16, 32, 60)},
        (32, 32, 3),
    ),
}


def splitting_cost(name, effort, batch=64, num_evaluations=20):
    """Returns the ratio of a solve to a loop of as many splitting steps.

    Args:
        name: String. The cell.
        effort: `measuring.Effort`.
        batch: Positive integer. Samples of a solve.
        num_evaluations: Positive integer. The budget, all of which is spent.
    """
    cell_class, arguments, shape = _MONOTONE_CELLS[name]
    keras.utils.set_random_seed(0)
    # A tolerance of zero keeps the work of stopping in the measurement.
    solver = deq_keras.solvers.PeacemanRachford(max_iter=num_evaluations, tol=0.0)
    deq = deq_keras.layers.DEQ(cell_class(**arguments), solver=solver)
    injection = deq.inject(tf.random.stateless_normal((batch, *shape), (0, 1)))

    def loop(injection):
        splitting = deq.cell.operator_splitting(injection)
        start = deq.cell.initial_state(injection)
        step = solver.iteration(splitting)
        _, iterate = tf.while_loop(
            lambda count, _: count < num_evaluations,
            lambda count, iterate: (count + 1, step(iterate)),
            (tf.constant(0), splitting.to_auxiliary(start, solver.alpha)),
        )
        return splitting.from_auxiliary(iterate, solver.alpha)

    def solve_problem(injection):
        problem = deq.problem(injection=injection)
        return solver.solve(problem, deq.request(problem))

    solve, bare = (
        functools.partial(tf.function(function), injection)
        for function in (solve_problem, loop)
    )
    check_budget_is_spent(solve(), "Peaceman-Rachford", num_evaluations)
    return compare(solve, bare, effort)


def option_costs(
    effort, names=("transformer_layer", "conv_block"), budget=12, **build_arguments
):
    """Returns the ratio of a call with an option to the call without, by workload.

    `aitken` is a solve, over one of plain iteration. `predicted` and `normalized` are
    training steps with the implicit gradient: with a predicted initial state, and a
    spectrally normalized kernel.

    Args:
        effort: `measuring.Effort`.
        names: Workloads.
        budget: Positive integer. Evaluations of every solve.
        **build_arguments: Arguments of `workloads.build`.
    """
    results = {}
    for name in names:
        workload = workloads.build(name, **build_arguments)
        inputs, width = workload.injection, workload.injection.shape[-1]
        plain = _deq(workload.cell, budget)
        predicted = _deq(workload.cell, budget)
        predicted.initial_state = deq_keras.initial_states.Predicted(
            keras.layers.Dense(width)
        )
        dense, normalized = (
            _deq(deq_keras.layers.cell_from(make(width, activation="tanh")), budget)
            for make in (
                keras.layers.Dense,
                deq_keras.layers.SpectrallyNormalizedDense,
            )
        )
        pairs = {
            "aitken": (
                compiled_solve(workload, "aitken", budget),
                compiled_solve(workload, "fixed_point_iteration", budget),
            ),
            "predicted": (_step(predicted, inputs), _step(plain, inputs)),
            "normalized": (_step(normalized, inputs), _step(dense, inputs)),
        }
        results[name] = {
            option: compare(*calls, effort) for option, calls in pairs.items()
        }
    return results


def _deq(cell, budget):
    # A tolerance of zero keeps the work of stopping in the measurement.
    return layer(cell, deq_keras.solvers.Anderson(max_iter=budget, tol=0.0))


def _step(deq, inputs):
    """Returns a compiled training step: the loss of the state and its gradients."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = deq(inputs, training=True)
            losses = [tf.reduce_mean(state**2) for state in tf.nest.flatten(value)]
            loss = tf.add_n([*losses, *deq.losses])
        return loss, tape.gradient(loss, deq.trainable_variables)

    return step


BENCHMARKS = {
    "compaction": Benchmark(
        "Measures solves whose samples leave the batch once they converge.",
        {"solves": compact_costs},
    ),
    "options": Benchmark(
        "Measures what options of a layer add to a call.", {"calls": option_costs}
    ),
    "splittings": Benchmark(
        "Measures solves of monotone networks.",
        {name: functools.partial(splitting_cost, name) for name in _MONOTONE_CELLS},
    ),
}
