"""`deq-keras benchmark gradients`: backpropagation through computed steps.

Measures the time ratio of a `TruncatedGradient` training step to the same steps in a
Python loop, the minimum for a weight-tied network of as many layers; the memory that
each further step needs, with and without activations; and the memory and the time of
gradients that differentiate a whole solve.
"""

import functools

import tensorflow as tf

import deq_keras

from ..evaluation.peak_memory import peak_growth
from . import workloads
from .costs import NOT_MEASURABLE, is_memory_measurable, layer, state_size
from .measuring import compare, states_per_evaluation
from .runner import Benchmark

_WORKLOADS = ("transformer_layer", "conv_block")
_REMAT = {"plain": False, "remat": True}


def step_costs(effort, names=_WORKLOADS, num_steps=8, **build_arguments):
    """Returns the ratio of a training step to the same graded steps by hand, by
    workload, with and without rematerialization."""
    costs = {}
    for name in names:
        workload = workloads.build(name, **build_arguments)
        by_hand = step_by_hand(workload, num_steps)
        for label, remat in _REMAT.items():
            step = truncated_step(workload, num_steps, remat)
            costs[f"{name}, {label}"] = compare(step, by_hand, effort)
    return costs


def training_peaks(effort, names=_WORKLOADS, num_steps=(4, 16), **build_arguments):
    """Returns the growth of peak memory in states per graded step, or `NOT_MEASURABLE`.

    Without rematerialization, activations are stored; this control must grow by more.
    """
    del effort
    if not is_memory_measurable():
        return NOT_MEASURABLE
    growth = {}
    for name in names:
        workload = workloads.build(name, **build_arguments)
        for label, remat in _REMAT.items():
            peaks = {
                count: peak_growth(truncated_step(workload, count, remat))
                for count in num_steps
            }
            growth[f"{name}, {label}"] = {
                "mib": peaks,
                "states_per_step": states_per_evaluation(peaks, state_size(workload)),
            }
    return growth


def solve_peaks(effort, names=_WORKLOADS, num_evaluations=(6, 60), **build_arguments):
    """Returns the peak memory of training steps through whole solves, in MiB by budget,
    and the ratio of the largest to the smallest; or `NOT_MEASURABLE`.

    The unrolled gradient without checkpoints is the control, which must grow.
    """
    del effort
    if not is_memory_measurable():
        return NOT_MEASURABLE
    growth = {}
    for name in names:
        workload = workloads.build(name, **build_arguments)
        for label, gradient in solve_gradients(max(num_evaluations)).items():
            peaks = {
                count: peak_growth(solve_step(workload, gradient, count))
                for count in num_evaluations
            }
            ratio = peaks[max(peaks)] / peaks[min(peaks)]
            growth[f"{name}, {label}"] = {"mib": peaks, "ratio": ratio}
    return growth


def solve_costs(effort, names=_WORKLOADS, num_evaluations=24, **build_arguments):
    """Returns the ratio of a training step to the unrolled one, by workload."""
    costs = {}
    for name in names:
        workload = workloads.build(name, **build_arguments)
        unrolled, *others = (
            (label, solve_step(workload, gradient, num_evaluations))
            for label, gradient in solve_gradients(num_evaluations).items()
        )
        for label, step in others:
            costs[f"{name}, {label}"] = compare(step, unrolled[1], effort)
    return costs


def solve_gradients(num_evaluations):
    """Returns gradients through a whole solve by name, the unrolled one first."""
    checkpoints = round(num_evaluations**0.5)
    return {
        "unrolled": deq_keras.gradients.UnrolledGradient(),
        "checkpoints": deq_keras.gradients.UnrolledGradient(checkpoints),
        "reversible, beta 0.8": deq_keras.gradients.ReversibleGradient(0.8),
        "reversible, beta 0.5": deq_keras.gradients.ReversibleGradient(0.5),
    }


def solve_step(workload, gradient, num_evaluations):
    """Returns a compiled training step through a solve of a fixed budget."""
    solver = deq_keras.solvers.FixedPointIteration(num_evaluations, tol=None)
    deq = layer(workload.cell, solver, gradient)
    return _compiled(workload, functools.partial(deq, training=True))


def truncated_step(workload, num_steps, remat):
    """Returns a compiled training step without arguments: its loss and gradients."""
    gradient = deq_keras.gradients.TruncatedGradient(
        num_steps, num_free_steps=0, max_steps=num_steps, remat=remat
    )
    return solve_step(workload, gradient, num_steps)


def step_by_hand(workload, num_steps):
    """Returns the same step as `truncated_step`, without the layer."""
    cell = workload.cell

    def run(inputs):
        injection = cell.inject(inputs)
        state = cell.initial_state(injection)
        for _ in range(num_steps):
            state = cell(state, injection)
        return state

    return _compiled(workload, run)


def _compiled(workload, run):
    weights = workload.cell.trainable_variables

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            state = run(workload.injection)
            loss = tf.reduce_mean(tf.square(state - workload.target))
        return loss, tape.gradient(loss, weights)

    return step


BENCHMARKS = {
    "gradients": Benchmark(
        "Measures back-propagation through computed steps.",
        {
            "time": step_costs,
            "memory": training_peaks,
            "solve_time": solve_costs,
            "solve_memory": solve_peaks,
        },
    )
}
