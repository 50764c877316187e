"""A solve by a splitting beside a bare loop of its steps."""

import functools

import keras
import tensorflow as tf

import deq_keras

from ..timing import compare

_CELLS = {
    "dense": (deq_keras.layers.MonotoneDenseCell, {"units": 87}, (64,)),
    "convolution": (deq_keras.layers.MonotoneConvCell, {"filters": 32}, (16, 16, 3)),
    "multiscale": (
        deq_keras.layers.MonotoneMultiscaleCell,
        {"filters": (16, 32, 60)},
        (32, 32, 3),
    ),
}


def _overhead(name, effort, batch=64, num_evaluations=20):
    """Returns the `Ratio` of a solve to a loop of as many steps, as a dict.

    Args:
        name: which cell.
        effort: a `timing.Effort`.
        batch: int. Samples of a solve.
        num_evaluations: int. The budget, all of which is spent.
    """
    cell_class, arguments, shape = _CELLS[name]
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
            (tf.constant(0), splitting.enter(start, solver.alpha)),
        )
        return splitting.leave(iterate, solver.alpha)

    solve, bare = (
        functools.partial(tf.function(function), injection)
        for function in (deq.solve_injection, loop)
    )
    spent = int(solve().batch_evaluations)
    if spent != num_evaluations:
        raise RuntimeError(
            "A solve must spend exactly its budget, or its cost means nothing. "
            f"Received: {spent} of {num_evaluations} evaluations."
        )
    ratio = compare(solve, bare, effort)
    return {**ratio._asdict(), "batch": batch, "num_evaluations": num_evaluations}


MEASUREMENTS = {name: functools.partial(_overhead, name) for name in _CELLS}
