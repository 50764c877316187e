"""How busy other processes kept the processors."""

import os
import time
from pathlib import Path

_STATISTICS = Path("/proc/stat")


class ProcessorUsage:
    """Measures the processors that other processes used since it was made.

    Needs `/proc/stat`; elsewhere `others()` is `None`.

    Example:

    >>> usage = ProcessorUsage()
    >>> others = usage.others()  # 0.0 on a quiet machine, 1.0: one processor was taken
    """

    def __init__(self):
        self._start = _sample()

    def others(self):
        """Returns the mean number of processors in use by others, or `None`."""
        if self._start is None:
            return None
        busy, own, now = (b - a for a, b in zip(self._start, _sample(), strict=True))
        return max(0.0, (busy - own) / max(now, 1e-6))


def wait_until_quiet(limit, threshold):
    """Sleeps until other processes use less than `threshold` processors.

    Args:
        limit: float. Seconds after which the wait is given up.
        threshold: float. Number of processors.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        usage = ProcessorUsage()
        time.sleep(0.5)
        others = usage.others()
        if others is None or others < threshold:
            return


def _sample():
    """Busy seconds of the machine, seconds of this process, and the time."""
    if not _STATISTICS.exists():
        return None
    fields = _STATISTICS.read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, *interrupts = (int(field) for field in fields[:8])
    ticks = user + nice + system + sum(interrupts)
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK"), own.user + own.system, time.monotonic()
