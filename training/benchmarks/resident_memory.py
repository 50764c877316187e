"""The peak of this process's resident memory."""

import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

# glibc returns a freed block to the system at once only if it was mapped on its own;
# otherwise freed tensors would hide in the heap and no peak could be seen.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def is_available():
    """Whether this system lets a process reset the peak of its resident memory."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def peak_growth(call, repeats):
    """Returns by how much memory grew at its peak over its start, in MiB.

    The first call is not measured: what it leaves, compiled graphs above all, is there
    once, whatever the size of the tensors.

    Args:
        call: function without arguments.
        repeats: int. How often it is measured: the peak of a parallel program varies.
    """
    call()
    gc.collect()
    start = _mebibytes("VmRSS")
    _CLEAR.write_text("5")  # VmHWM starts again from here
    for _ in range(repeats):
        call()
    return _mebibytes("VmHWM") - start


def peak():
    """Returns the peak of the resident memory of this process so far, in MiB."""
    return _mebibytes("VmHWM")


def _mebibytes(key):
    for line in _STATUS.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"No field {key!r} in {_STATUS}.")
