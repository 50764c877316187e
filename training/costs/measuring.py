"""What all benchmarks share: wall times, memory, fresh processes, the command line.

Ratios are medians over neighboring pairs of calls, so that a drifting clock cancels. On
a GPU, a call returns when its work is queued; measurements wait until it is done.
"""

import argparse
import inspect
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from .. import machine
from ..errors import InputError
from ..evaluation.peak_memory import peak_growth

NOT_MEASURABLE = "not measurable here"
_SPREAD = ("median", "lower_quartile", "upper_quartile")


class Effort(NamedTuple):
    """Duration in seconds and number of rounds of a measurement.

    A measurement is repeated up to `attempts` times if other processes use more than
    `tolerated` processors meanwhile; the quietest attempt counts.
    """

    seconds: float = 6.0
    min_rounds: int = 7
    attempts: int = 4
    tolerated: float = 0.08


# Shows that a benchmark runs, not how fast.
QUICK = Effort(seconds=0.2, min_rounds=2, attempts=1)


class Duration(NamedTuple):
    """Wall time of one call, in milliseconds; above 0.08 `other_processors` disturb."""

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
    (seconds,), others = _quietest((call,), effort, ())
    return _duration(seconds, others)


def compare(numerator, denominator, effort, workers=()):
    """Returns the `Ratio` of the wall times of two calls, which alternate.

    `workers` are the `Worker`s that the calls use: they are not other processes.
    """
    (bottom, top), others = _quietest((denominator, numerator), effort, workers)
    sides = _duration(top, others), _duration(bottom, others)
    return Ratio(*spread(top / bottom).values(), *sides)


def spread(values):
    """Returns a dict of the median and the quartiles of values."""
    quantiles = np.quantile(values, [0.5, 0.25, 0.75])
    return dict(zip(_SPREAD, map(float, quantiles), strict=True))


def _quietest(calls, effort, workers):
    """Returns seconds `(calls, rounds)` and the processors that others used."""
    for call in calls:  # Compiles, and fills the caches.
        _seconds(call)
    best, least = None, float("inf")
    for attempt in range(effort.attempts):
        if attempt:
            time.sleep(10.0)  # Others may end meanwhile.
        rounds, start = [], time.perf_counter()
        before = processor_seconds(workers)
        while (
            len(rounds) < effort.min_rounds
            or time.perf_counter() - start < effort.seconds
        ):
            rounds.append([_seconds(call) for call in calls])
        used = other_processors(before, processor_seconds(workers))
        if used is None:
            return np.array(rounds).T, None
        if used < least:
            best, least = np.array(rounds).T, used
        if used <= effort.tolerated:
            break
    return best, least


def _seconds(call):
    start = time.perf_counter()
    call()
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()
    return time.perf_counter() - start


def repeat(call, seconds):
    """Returns the mean seconds of a call that is repeated for some seconds."""
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < seconds:
        call()
        count += 1
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()
    return (time.perf_counter() - start) / count


def _duration(seconds, others):
    return Duration(*spread(1e3 * seconds).values(), len(seconds), others)


def processor_seconds(workers):
    """Returns busy seconds of the machine, of our processes, and the time, or `None`.

    `None` where the system has no `/proc`.
    """
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return None
    fields = statistics.read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, *interrupts = (int(field) for field in fields[:8])
    busy = user + nice + system + sum(interrupts)
    own = 0
    for process in (os.getpid(), *(worker.pid for worker in workers)):
        # The name of the program, in parentheses, may contain spaces.
        facts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        own += int(facts[11]) + int(facts[12])
    per_second = os.sysconf("SC_CLK_TCK")
    return busy / per_second, own / per_second, time.monotonic()


def other_processors(before, after):
    """Returns the mean number of processors that other processes used, or `None`."""
    if before is None:
        return None
    busy, own, elapsed = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, (busy - own) / max(elapsed, 1e-6))


class Worker:
    """A fresh process that calls functions, one after the other.

    Example:

    >>> with Worker() as call:
    ...     call(spread, values=[1.0, 2.0, 3.0])["median"]
    2.0
    """

    def __init__(self):
        # Spawned: a fork would inherit threads and memory of TensorFlow.
        context = multiprocessing.get_context("spawn")
        self._connection, connection = context.Pipe()
        self._process = context.Process(target=_answer, args=(connection,), daemon=True)
        self._process.start()
        connection.close()

    @property
    def pid(self):
        return self._process.pid

    def __call__(self, function, **arguments):
        """Returns the result of a module's function, which is called in the process.

        Raises:
            RuntimeError: If the process ends, which has printed the reason.
        """
        try:
            self._connection.send((function, arguments))
            return self._connection.recv()
        except (EOFError, BrokenPipeError):
            self._process.join()
            raise RuntimeError(
                f"The process of {function.__module__}.{function.__name__} ended with "
                f"exit status {self._process.exitcode}; see the error that it printed."
            ) from None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.join()


def _answer(connection):
    while True:
        function, arguments = connection.recv()
        connection.send(function(**arguments))


def in_fresh_process(function, **arguments):
    """Returns the result of a module's function, called in a process of its own."""
    with Worker() as call:
        return call(function, **arguments)


def peaks(make, cases):
    """Returns the peak growth of memory in compiled steps in MiB, or `NOT_MEASURABLE`.

    `make` returns the step of a case, from its dict of keyword arguments. Each step is
    made, measured and dropped before the next. Weights, accumulated gradients and
    buffers that the compiled step keeps are excluded.
    """
    if not is_memory_measurable():
        return NOT_MEASURABLE
    return {name: peak_growth(make(**arguments)) for name, arguments in cases.items()}


def is_memory_measurable():
    """Returns whether the allocator reports memory that must grow.

    The gradient of n hyperbolic tangents keeps their n results, of 1 MiB each.
    """
    few, many = 4, 16

    def growth(depth):
        @tf.function
        def gradient(inputs):
            outputs = inputs
            for _ in range(depth):
                outputs = tf.tanh(outputs)
            return tf.gradients(outputs, inputs)

        inputs = tf.ones(2**18)
        return peak_growth(lambda: gradient(inputs))

    growths = growth(few), growth(many)
    return None not in growths and growths[1] - growths[0] > 0.9 * (many - few)


def run(name, description, measurements, argv=None, add_arguments=None, optional=()):
    """Runs the command of a benchmark: prints numbers, and writes JSON with `--out`.

    Args:
        name: String. Module of `benchmarks`.
        description: String, its docstring.
        measurements: Dict of names to functions of an `Effort` and of options. They
            return nested dicts of `Ratio`, `Duration` and numbers.
        argv: List of command-line arguments. `None`: the arguments of the process.
        add_arguments: Function that adds options to an `argparse` parser, for the
            measurements that have parameters of their names.
        optional: Names that are measured only if `--only` lists them.

    Returns:
        The results as a JSON-serializable dict.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description.splitlines()[0],
    )
    default = [name for name in measurements if name not in optional]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=measurements,
        default=default,
        metavar="NAME",
        help=f"which of {', '.join(measurements)}; default: {' '.join(default)}",
    )
    parser.add_argument("--out", type=argparse.FileType("w"), help="JSON file to write")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds and updates: shows that it runs, not how fast",
    )
    if add_arguments is not None:
        add_arguments(parser)
    options = vars(parser.parse_args(argv))
    effort = QUICK if options["quick"] else Effort()
    chosen = {name: measurements[name] for name in options["only"]}
    try:
        results = take(chosen, effort, options)
    except InputError as error:
        parser.error(str(error))
    if options["out"] is not None:
        with options["out"] as file:
            json.dump(results, file, indent=1)
    return results


def take(measurements, effort, options=None):
    """Takes measurements, prints their numbers and returns them, JSON-serializable.

    `measurements` are functions by name; see `run`. Each function gets the `options`
    of its parameters.
    """
    options = options or {}
    environment = {**machine.environment(), "settings": machine.settings()}
    results = {"environment": environment}
    for name, function in measurements.items():
        progress(name)
        accepted = set(inspect.signature(function).parameters) & set(options)
        found = function(effort, **{key: options[key] for key in accepted})
        results[name] = _plain(found)
    print("\n".join(lines((), results)), flush=True)
    return results


def progress(subject):
    """Prints what is measured next, to the standard error."""
    print(f"measuring: {subject}", file=sys.stderr, flush=True)


def _plain(value):
    """Returns `value` as JSON has it: named tuples as dicts, keys as strings."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def lines(path, value):
    """Yields the lines of a nested result; ratios and times have quartiles."""
    if not isinstance(value, dict):
        yield f"{', '.join(path)}: {_text(value)}"
        return
    value = dict(value)
    if set(_SPREAD) <= set(value):
        median, low, high = (_text(value.pop(name)) for name in _SPREAD)
        yield f"{', '.join(path)}: {median} ({low} to {high})"
    for key, item in value.items():
        yield from lines((*path, key), item)


def _text(value):
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
