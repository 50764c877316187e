"""What the library promises of its costs, on two processors in float32.

The promise of a change that makes something slower is broken here first.
"""

_TRANSFORMER, _CONV, _TINY = "transformer_layer", "conv_block", "tiny_mlp"

# Largest cost of a solve over its evaluations, by workload, solver and budget.
SOLVE = {
    (_TRANSFORMER, "anderson"): {6: 1.10, 12: 1.10, 30: 1.10},
    (_TRANSFORMER, "broyden"): {6: 1.20, 12: 1.25, 30: 1.40},
    (_CONV, "anderson"): {6: 1.20, 12: 1.20, 30: 1.20},
    (_CONV, "broyden"): {6: 1.30, 12: 1.50, 30: 1.80},
    (_TINY, "fixed_point_iteration"): {12: 1.2},
    (_TINY, "anderson"): {12: 3.0},
    (_TINY, "broyden"): {12: 3.0},
}

# Largest cost of a training step over its ideal, by workload and solver.
TRAIN = {
    (_TRANSFORMER, "anderson"): 1.10,
    (_TRANSFORMER, "broyden"): 1.25,
    (_CONV, "anderson"): 1.20,
    (_CONV, "broyden"): 1.50,
}

# The residuals that are kept are as large as the state of the other one.
MEMORY_WORKLOADS = (_TRANSFORMER, _CONV)

# Largest growth of peak memory from the smallest to the largest budget, in states an
# evaluation. A solver of bounded history keeps none; Broyden's method keeps one.
MEMORY_STATES = {"fixed_point_iteration": 0.1, "anderson": 0.1, "broyden": 1.0}

# Least growth of the control: the unrolled gradient keeps every evaluation.
CONTROL_STATES = 1.0

# Least speedup of mixed_bfloat16, and largest angle of its gradient in degrees.
PRECISION_SPEEDUP = 1.8
PRECISION_ANGLE = 5.0


def states_an_evaluation(peaks, state_mib):
    """Returns the growth of peak memory with the budget, in states an evaluation.

    Args:
        peaks: dict of budgets of evaluations to MiB, in ascending order; a peak is
            `None` where it is not known.
        state_mib: float. The size of a state.

    Returns:
        A float, or `None` where a peak is not known.
    """
    (fewest, low), *_, (most, high) = peaks.items()
    if low is None or high is None:
        return None
    return (high - low) / state_mib / (int(most) - int(fewest))


def is_seen(control_peaks, state_mib):
    """Tells whether a measure of memory sees the growth of the unrolled gradient."""
    growth = states_an_evaluation(control_peaks, state_mib)
    return growth is not None and growth >= CONTROL_STATES
