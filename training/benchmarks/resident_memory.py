"""The peak of the memory of this whole process, for what no allocator tells."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def is_available():
    """Whether this system tells it."""
    return _STATUS.exists() and "VmHWM:" in _STATUS.read_text()


def peak():
    """Returns the peak of the resident memory of this process so far, in MiB."""
    return _mebibytes("VmHWM")


def peak_growth(call):
    """Returns how far the first call of a process lifts its peak, in MiB.

    Only the first: freed memory stays with the process, in which later calls hide.
    """
    start = _mebibytes("VmRSS")
    call()
    return max(0.0, peak() - start)


def _mebibytes(key):
    for line in _STATUS.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"No field {key!r} in {_STATUS}.")
