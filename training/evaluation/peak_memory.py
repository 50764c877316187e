"""Peak memory of a call, from the statistics of TensorFlow's allocator."""

import gc

import numpy as np
import tensorflow as tf

_REPEATS = 3


def peak_growth(call):
    """Returns the growth of allocated memory during a call, in MiB.

    The first call is a warm-up: it permanently allocates memory, mainly for compiled
    graphs. The result is the median of the following calls, because the order of
    parallel operations changes the peak by one or two tensors.

    On a CPU, the statistics ignore tensors below 256 KiB.

    Args:
        call: Function without arguments.

    Returns:
        Float, or `None` if the allocator does not collect statistics.
    """
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    call()
    gc.collect()
    try:
        return float(np.median([_growth(call, device) for _ in range(_REPEATS)]))
    except ValueError:  # Support per device depends on the TensorFlow version.
        return None


def _growth(call, device):
    statistics = tf.config.experimental
    # On a GPU a call returns before its work is done.
    tf.test.experimental.sync_devices()
    statistics.reset_memory_stats(device)
    start = statistics.get_memory_info(device)["current"]
    call()
    tf.test.experimental.sync_devices()
    return (statistics.get_memory_info(device)["peak"] - start) / 2**20
