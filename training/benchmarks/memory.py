"""Peak memory of training steps by TensorFlow's own statistics of its allocator.

Whether they see anything, a control tells that must grow: the unrolled gradient, which
keeps every evaluation.
"""

import gc

import numpy as np
import tensorflow as tf

from . import bounds, workloads
from .training_step import UNROLLED, TrainingStep

NOT_MEASURABLE = "not measurable here"

_REPEATS = 3
_CONTROL_BUDGETS = 6, 60
# On a CPU the statistics leave out tensors below 256 KiB: a state here has 512.
_CONTROL_SIZES = {"batch": 8, "length": 64, "width": 256, "inner": 256}


def peak_growth(call):
    """Returns by how much allocated memory grows in a call, in MiB.

    The first call is not measured: what it leaves, compiled graphs above all, is there
    once. Of the others it is the median: the order in which operations run in parallel
    moves the peak by a tensor or two.

    Args:
        call: function without arguments.

    Returns:
        A float, or `None` where the allocator keeps no statistics.
    """
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    call()
    gc.collect()
    try:
        return float(np.median([_growth(call, device) for _ in range(_REPEATS)]))
    except ValueError:  # Which device keeps statistics depends on TensorFlow's version.
        return None


def peaks(makers):
    """Returns the peak growth of each of several calls, in MiB, or `NOT_MEASURABLE`.

    Args:
        makers: dict of names to functions that make the call; each is made, measured
            and dropped before the next.
    """
    if not is_measurable():
        return NOT_MEASURABLE
    return {name: peak_growth(make()) for name, make in makers.items()}


def is_measurable():
    """Tells whether `peak_growth` sees the growth of a small control."""
    sizes = _CONTROL_SIZES
    control = workloads.build("transformer_layer", sizes=sizes, inner=sizes["inner"])
    growth = {
        budget: peak_growth(TrainingStep(control, UNROLLED, budget))
        for budget in _CONTROL_BUDGETS
    }
    return bounds.is_seen(growth, state_size(control))


def state_size(workload):
    """Returns the size of one state in MiB."""
    return workload.target.numpy().nbytes / 2**20


def _growth(call, device):
    statistics = tf.config.experimental
    statistics.reset_memory_stats(device)
    start = statistics.get_memory_info(device)["current"]
    call()
    return (statistics.get_memory_info(device)["peak"] - start) / 2**20
