"""How every benchmark measures: wall times, their ratios, memory, fresh processes.

Ratios are medians over neighboring pairs of calls, so that a drifting clock cancels.
This module needs neither TensorFlow nor torch: it measures both.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Effort(NamedTuple):
    """How long and how often to measure.

    Attributes:
        seconds: Float. Least duration of a measurement.
        min_rounds: Positive integer. Least number of rounds of a measurement.
        attempts: Positive integer. How often a measurement is repeated while other
            processes disturb it; the quietest attempt counts.
        tolerated: Float. Processors that other processes may use in an undisturbed
            measurement.
    """

    seconds: float = 6.0
    min_rounds: int = 7
    attempts: int = 4
    tolerated: float = 0.08


# Shows that a benchmark runs, not how fast.
QUICK = Effort(seconds=0.2, min_rounds=2, attempts=1)


class Duration(NamedTuple):
    """Wall time of one call, in milliseconds, and how it was measured."""

    median: float
    lower_quartile: float
    upper_quartile: float
    rounds: int
    other_processors: float | None


class Ratio(NamedTuple):
    """Median and quartiles of numerator over denominator, measured in pairs."""

    median: float
    lower_quartile: float
    upper_quartile: float
    numerator: Duration
    denominator: Duration

    @property
    def difference(self):
        """Milliseconds by which the numerator takes longer."""
        return self.numerator.median - self.denominator.median


def measure(call, effort):
    """Returns the `Duration` of `call()`, which must return when its work is done."""
    (seconds,), others = _quietest((call,), effort)
    return _duration(seconds, others)


def compare(numerator, denominator, effort):
    """Returns the `Ratio` of the wall times of two calls, which alternate."""
    (bottom, top), others = _quietest((denominator, numerator), effort)
    sides = _duration(top, others), _duration(bottom, others)
    return Ratio(*spread(top / bottom).values(), *sides)


def spread(values):
    """Returns a dict of the median and the quartiles of values."""
    lower, median, upper = map(float, np.quantile(values, [0.25, 0.5, 0.75]))
    return {"median": median, "lower_quartile": lower, "upper_quartile": upper}


def _quietest(calls, effort):
    """Returns seconds `(calls, rounds)` and the processors that others used."""
    for call in calls:  # Compiles, and fills the caches.
        call()
    best, least = None, float("inf")
    for attempt in range(effort.attempts):
        if attempt:
            _wait_until_quiet(limit=60.0, threshold=effort.tolerated)
        usage = ProcessorUsage()
        seconds = _alternate(calls, effort)
        others = usage.others()
        if others is None:
            return seconds, None
        if others < least:
            best, least = seconds, others
        if others <= effort.tolerated:
            break
    return best, least


def _alternate(calls, effort):
    rounds, start = [], time.perf_counter()
    while (
        len(rounds) < effort.min_rounds or time.perf_counter() - start < effort.seconds
    ):
        rounds.append([_seconds(call) for call in calls])
    return np.array(rounds).T


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _duration(seconds, others):
    return Duration(*spread(1e3 * seconds).values(), len(seconds), others)


class ProcessorUsage:
    """Measures the processors that other processes use from its creation on.

    Needs `/proc/stat`; elsewhere `others()` returns `None`.

    Example:

    >>> usage = ProcessorUsage()
    >>> others = usage.others()  # 0.0 on a quiet machine, 1.0: one processor was taken
    """

    def __init__(self):
        self._start = self._sample()

    def others(self):
        """Returns the mean number of processors that other processes used."""
        if self._start is None:
            return None
        pairs = zip(self._start, self._sample(), strict=True)
        busy, own, elapsed = (after - before for before, after in pairs)
        return max(0.0, (busy - own) / max(elapsed, 1e-6))

    @staticmethod
    def _sample():
        """Busy seconds of the machine, seconds of this process, and the time."""
        statistics = Path("/proc/stat")
        if not statistics.exists():
            return None
        fields = statistics.read_text().splitlines()[0].split()[1:]
        user, nice, system, _, _, *interrupts = (int(field) for field in fields[:8])
        ticks = user + nice + system + sum(interrupts)
        own = os.times()
        seconds = ticks / os.sysconf("SC_CLK_TCK")
        return seconds, own.user + own.system, time.monotonic()


def _wait_until_quiet(limit, threshold):
    """Waits at most `limit` seconds for others to use fewer than so many processors."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        usage = ProcessorUsage()
        time.sleep(0.5)
        others = usage.others()
        if others is None or others < threshold:
            return


def resident_memory(key="VmHWM"):
    """Returns the resident memory of this process in MiB, or `None` if unknown.

    Args:
        key: String. `"VmHWM"`, the peak so far, or `"VmRSS"`, the present size.
            Defaults to `"VmHWM"`.
    """
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    return None


def states_per_evaluation(peaks, state_mib):
    """Returns the growth of peak memory with the budget, in states per evaluation.

    Args:
        peaks: Dict of budgets to MiB, in ascending order; `None` for an unknown peak.
        state_mib: Float. The size of one state.

    Returns:
        A float, or `None` if a peak is unknown.
    """
    (fewest, low), *_, (most, high) = peaks.items()
    if low is None or high is None:
        return None
    return (high - low) / state_mib / (int(most) - int(fewest))


def does_grow(control_peaks, state_mib):
    """Returns whether the memory of the control is seen to grow: by a state each."""
    growth = states_per_evaluation(control_peaks, state_mib)
    return growth is not None and growth >= 1.0


def in_fresh_process(name, request, python=None):
    """Returns the result of a function of this package, called in its own process.

    Args:
        name: String `"module.function"`, such as `"mdeq.step_time"`; with a leading dot
            relative to the parent package: `".reproduce.memory.peak"`.
        request: Dict of JSON-serializable keyword arguments of the function.
        python: Path of an interpreter that need not have the library; it imports
            nothing but this package. `None`: the current interpreter.

    Raises:
        RuntimeError: If the process fails, with the end of its error output.
    """
    package, setup, environment = __package__, "", dict(os.environ)
    if python is None:
        # The child imports what this process imports, wherever the package was found.
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    else:
        # Append the root: beside an installed `training` lie modules of the library.
        root = str(Path(__file__).resolve().parents[2])
        package, setup = "training.benchmarks", f"import sys; sys.path += [{root!r}]; "
    source = f"{setup}from {package} import measuring; measuring.answer()"
    command = [str(python or sys.executable), "-c", source, name, json.dumps(request)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    if process.returncode != 0:
        raise RuntimeError(
            f"A benchmark failed with exit status {process.returncode}: "
            f"{process.stderr[-2000:]}"
        )
    return json.loads(process.stdout.splitlines()[-1])


def answer():
    """Calls the function that `in_fresh_process` names; prints its result as JSON."""
    _, name, request = sys.argv
    module, _, function = name.rpartition(".")
    module = importlib.import_module(f".{module}", __package__)
    print(json.dumps(plain(getattr(module, function)(**json.loads(request)))))


def plain(value):
    """Returns `value` as JSON has it: named tuples as dicts, keys as strings."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
