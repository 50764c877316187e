"""Peak memory of a call by TensorFlow's own statistics of its allocator."""

import gc

import numpy as np
import tensorflow as tf

_REPEATS = 3


def peak_growth(call):
    """Returns by how much allocated memory grows in a call, in MiB.

    The first call is not measured: what it leaves, compiled graphs above all, is there
    once. Of the others it is the median: the order in which operations run in parallel
    moves the peak by a tensor or two.

    On a CPU the statistics leave out tensors below 256 KiB.

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


def _growth(call, device):
    statistics = tf.config.experimental
    statistics.reset_memory_stats(device)
    start = statistics.get_memory_info(device)["current"]
    call()
    return (statistics.get_memory_info(device)["peak"] - start) / 2**20
