"""Measures back-propagation through computed steps.

The time of a `TruncatedGradient` training step over the same steps in a Python loop,
the minimum for a weight-tied network of as many layers; the memory that each further
step needs, with and without activations; and the memory of gradients through a whole
solve.
"""

import functools

import deq_keras
from training.costs import measuring
from training.costs.measuring import compare

from . import solvers

_WORKLOADS = ("transformer_layer", "conv_block")
_HAS_CHECKPOINTS = {"plain": False, "checkpoints": True}


def step_costs(effort, names=_WORKLOADS, num_steps=8, sizes=None):
    """Returns the ratio of a training step to the same graded steps by hand, by
    workload, without and with a checkpoint at every step."""
    costs = {}
    for name in names:
        workload = solvers.build(name, sizes)
        by_hand = step_by_hand(workload, num_steps)
        for label, has_checkpoints in _HAS_CHECKPOINTS.items():
            step = truncated_step(workload, num_steps, has_checkpoints)
            costs[f"{name}, {label}"] = compare(step, by_hand, effort)
    return costs


def training_peaks(effort, names=_WORKLOADS, num_steps=(4, 16), sizes=None):
    """Returns the growth of peak memory in states per graded step.

    Without checkpoints, activations are stored; this control must grow by more.
    """
    del effort
    return {
        f"{name}, {label}": _growth(
            functools.partial(truncated_step, has_checkpoints=has_checkpoints),
            name,
            num_steps,
            sizes,
        )
        for name in names
        for label, has_checkpoints in _HAS_CHECKPOINTS.items()
    }


def solve_peaks(effort, names=_WORKLOADS, num_evaluations=(6, 60), sizes=None):
    """Returns the peak memory of training steps through whole solves, by budget.

    The unrolled gradient without checkpoints is the control, which must grow.
    """
    del effort
    return {
        f"{name}, {label}": _growth(
            functools.partial(solve_step, gradient=gradient),
            name,
            num_evaluations,
            sizes,
        )
        for name in names
        for label, gradient in solve_gradients(max(num_evaluations)).items()
    }


def _growth(make, name, counts, sizes):
    workload = solvers.build(name, sizes)
    cases = {count: {"count": count} for count in counts}
    mib = measuring.peaks(lambda count: make(workload, count), cases)
    if mib == measuring.NOT_MEASURABLE:
        return mib
    first, last = counts
    return {
        "mib": mib,
        "ratio": mib[last] / max(mib[first], 1e-3),
        "states_per_step": (mib[last] - mib[first])
        / (last - first)
        / (workload.target.numpy().nbytes / 2**20),
    }


def solve_gradients(num_evaluations):
    """Returns gradients through a whole solve by name."""
    checkpoints = round(num_evaluations**0.5)
    return {
        "unrolled": deq_keras.gradients.UnrolledGradient(),
        "checkpoints": deq_keras.gradients.UnrolledGradient(checkpoints),
        "reversible, beta 0.8": deq_keras.gradients.ReversibleGradient(0.8),
        "reversible, beta 0.5": deq_keras.gradients.ReversibleGradient(0.5),
    }


def solve_step(workload, num_evaluations, gradient):
    """Returns a compiled training step through a solve of a fixed budget."""
    solver = deq_keras.solvers.FixedPointIteration(num_evaluations, tol=None)
    deq = solvers.layer(workload.cell, solver, gradient)
    return solvers.step_of(workload, functools.partial(deq, training=True))


def truncated_step(workload, num_steps, has_checkpoints):
    """Returns a compiled training step through graded steps."""
    gradient = deq_keras.gradients.TruncatedGradient(
        num_steps,
        num_free_steps=0,
        max_steps=num_steps,
        checkpoints=num_steps if has_checkpoints else None,
    )
    return solve_step(workload, num_steps, gradient)


def step_by_hand(workload, num_steps):
    """Returns the same step as `truncated_step`, without the layer."""
    cell = workload.cell

    def apply(inputs):
        injection = cell.inject(inputs)
        state = cell.initial_state(injection)
        for _ in range(num_steps):
            state = cell(state, injection)
        return state

    return solvers.step_of(workload, apply)


MEASUREMENTS = {
    "time": step_costs,
    "memory": training_peaks,
    "solve_memory": solve_peaks,
}


def main(argv=None):
    return measuring.run("gradients", __doc__, MEASUREMENTS, argv)


if __name__ == "__main__":
    main()
