"""Measurements of all benchmarks: wall times, ratios, memory, fresh processes.

Ratios are medians over neighboring pairs of calls, so that a drifting clock cancels.
This module needs neither TensorFlow nor torch: it measures both.

On a GPU, a call returns when its work is queued. Measurements wait until it is done.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Effort(NamedTuple):
    """The duration and the number of measurements.

    Attributes:
        seconds: Float. Minimum duration of a measurement.
        min_rounds: Positive integer. Minimum number of rounds of a measurement.
        attempts: Positive integer. Maximum number of attempts if other processes
            disturb a measurement; the quietest attempt counts.
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
    """Returns the `Duration` of `call()`, until TensorFlow's devices are idle."""
    (seconds,), others = _quietest((call,), effort)
    return _duration(seconds, others)


def compare(numerator, denominator, effort, workers=()):
    """Returns the `Ratio` of the wall times of two calls, which alternate.

    Args:
        numerator: Function without arguments.
        denominator: Function without arguments.
        effort: `Effort`.
        workers: `Worker`s that the calls use. They are not other processes.
    """
    (bottom, top), others = _quietest((denominator, numerator), effort, workers)
    sides = _duration(top, others), _duration(bottom, others)
    return Ratio(*spread(top / bottom).values(), *sides)


def spread(values):
    """Returns a dict of the median and the quartiles of values."""
    lower, median, upper = map(float, np.quantile(values, [0.25, 0.5, 0.75]))
    return {"median": median, "lower_quartile": lower, "upper_quartile": upper}


def _quietest(calls, effort, workers=()):
    """Returns seconds `(calls, rounds)` and the processors that others used."""
    for call in calls:  # Compiles, and fills the caches.
        _seconds(call)
    best, least = None, float("inf")
    for attempt in range(effort.attempts):
        if attempt:
            _wait_until_quiet(limit=60.0, threshold=effort.tolerated)
        usage = ProcessorUsage(workers)
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
    wait_for_gpus()
    return time.perf_counter() - start


def wait_for_gpus():
    """Waits until TensorFlow, if it is loaded, has finished its work on GPUs."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.config.list_logical_devices("GPU"):
        tensorflow.test.experimental.sync_devices()


def _duration(seconds, others):
    return Duration(*spread(1e3 * seconds).values(), len(seconds), others)


class ProcessorUsage:
    """Measures the processors that other processes use from its creation on.

    Needs `/proc/stat`; elsewhere `others()` returns `None`.

    Args:
        workers: `Worker`s that are not other processes.

    Example:

    >>> usage = ProcessorUsage()
    >>> others = usage.others()  # 0.0 on a quiet machine, 1.0: one processor was taken
    """

    def __init__(self, workers=()):
        self._workers = workers
        self._start = self._sample()

    def others(self):
        """Returns the mean number of processors that other processes used."""
        if self._start is None:
            return None
        pairs = zip(self._start, self._sample(), strict=True)
        busy, own, elapsed = (after - before for before, after in pairs)
        return max(0.0, (busy - own) / max(elapsed, 1e-6))

    def _sample(self):
        """Busy seconds of the machine, of this process and workers, and the time."""
        statistics = Path("/proc/stat")
        if not statistics.exists():
            return None
        fields = statistics.read_text().splitlines()[0].split()[1:]
        user, nice, system, _, _, *interrupts = (int(field) for field in fields[:8])
        ticks = user + nice + system + sum(interrupts)
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        own = os.times()
        own = own.user + own.system
        for worker in self._workers:
            own += worker.processor_ticks() / ticks_per_second
        return ticks / ticks_per_second, own, time.monotonic()


def _wait_until_quiet(limit, threshold):
    """Waits up to `limit` seconds until others use less than `threshold` processors."""
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


class Worker:
    """A process that calls functions of this package, one after the other.

    Args:
        python: Path of an interpreter that need not have the library; it imports
            nothing but this package. `None`: the current interpreter.

    Raises:
        OSError: If the interpreter cannot be started.

    Example:

    >>> with Worker() as call:
    ...     call("measuring.spread", {"values": [1.0, 2.0, 3.0]})["median"]
    2.0
    """

    def __init__(self, python=None):
        package, setup, environment = __package__, "", dict(os.environ)
        if python is None:
            # It imports what this process imports, wherever the package was found.
            environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
        else:
            # Appended: an installed `training` lies beside modules of the library.
            root = str(Path(__file__).resolve().parents[2])
            package = "training.benchmarks"
            setup = f"import sys; sys.path += [{root!r}]; "
        source = f"{setup}from {package} import measuring; measuring.answer()"
        self._errors = tempfile.TemporaryFile("w+")
        try:
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-c", source],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=environment,
            )
        except OSError:
            self._errors.close()
            raise

    def __call__(self, name, request):
        """Returns the result of a function; see `in_fresh_process`."""
        try:
            print(json.dumps([name, request]), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            status = self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(
                f"A benchmark failed with exit status {status}: "
                f"{self._errors.read()[-2000:]}"
            ) from None

    def processor_ticks(self):
        """Returns the processor time so far, in clock ticks. Needs `/proc`."""
        facts = Path(f"/proc/{self._process.pid}/stat").read_text()
        # The name of the program, in parentheses, may contain spaces.
        user, system = facts.rpartition(")")[2].split()[11:13]
        return int(user) + int(system)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # Without a failure the process waits for the next request.
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def in_fresh_process(name, request, python=None):
    """Returns the result of a function of this package, called in its own process.

    Args:
        name: String `"module.function"`, such as `"mdeq.step_time"`; with a leading dot
            relative to the parent package: `".reproduce.memory.peak"`.
        request: Dict of JSON-serializable keyword arguments of the function.
        python: See `Worker`.

    Raises:
        RuntimeError: If the process fails, with the end of its error output.
    """
    with Worker(python) as call:
        return call(name, request)


def answer():
    """Answers the requests of a `Worker`, one per line, until the input ends."""
    # Redirects printed text to stderr, so that it does not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, request = json.loads(line)
        module, _, function = name.rpartition(".")
        module = importlib.import_module(f".{module}", __package__)
        result = plain(getattr(module, function)(**request))
        print(json.dumps(result), file=answers, flush=True)


def plain(value):
    """Returns `value` as JSON has it: named tuples as dicts, keys as strings."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
