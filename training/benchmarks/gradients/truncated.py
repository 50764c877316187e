"""Training steps of truncated gradients beside the same steps without the layer."""

import functools

import tensorflow as tf

import deq_keras

from .. import bounds, memory, workloads
from ..solving import layer
from ..timing import compare

WORKLOADS = ("transformer_layer", "conv_block")
NUM_STEPS = 8
MEMORY_STEPS = 4, 16


def step_costs(effort, names=WORKLOADS, num_steps=NUM_STEPS, **build_arguments):
    """Returns the `timing.Ratio` of a step to the same graded steps by hand, by
    workload, with and without rematerialisation."""
    costs = {}
    for name in names:
        workload = workloads.build(name, **build_arguments)
        by_hand = _by_hand(workload, num_steps)
        for label, remat in (("plain", False), ("remat", True)):
            step = truncated_step(workload, num_steps, remat)
            costs[f"{name}, {label}"] = compare(step, by_hand, effort)
    return costs


def training_peaks(effort, names=WORKLOADS, num_steps=MEMORY_STEPS, **build_arguments):
    """Returns the growth of peak memory in states a graded step, by workload, with and
    without rematerialisation; or that this is not measurable here.

    Without it, activations are kept: the control, which must grow by more.
    """
    del effort
    if not memory.is_measurable():
        return memory.NOT_MEASURABLE
    growth = {}
    for name in names:
        workload = workloads.build(name, **build_arguments)
        for label, remat in (("plain", False), ("remat", True)):
            peaks = {
                count: memory.peak_growth(truncated_step(workload, count, remat))
                for count in num_steps
            }
            growth[f"{name}, {label}"] = {
                "mib": peaks,
                "states_a_step": bounds.states_an_evaluation(
                    peaks, memory.state_size(workload)
                ),
            }
    return growth


def truncated_step(workload, num_steps, remat):
    """Returns a compiled training step of no arguments: its loss and its gradients."""
    gradient = deq_keras.gradients.TruncatedGradient(
        num_steps, num_free_steps=0, max_steps=num_steps, remat=remat
    )
    solver = deq_keras.solvers.FixedPointIteration(num_steps, tol=None)
    deq = layer(workload.cell, solver, gradient)
    return _compiled(workload, functools.partial(deq, training=True))


def _by_hand(workload, num_steps):
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
