"""Wall times, and ratios of wall times in which a machine's drift cancels."""

import time
from typing import NamedTuple

import numpy as np

from .processor_usage import ProcessorUsage, wait_until_quiet


class Effort(NamedTuple):
    """How long and how often to measure.

    Attributes:
        seconds: float. A measurement goes on for as long.
        min_rounds: int. And for at least as many rounds.
        attempts: int. Measurements disturbed by other processes are repeated so often;
            the quietest counts.
        tolerated: float. Processors that others may use in an undisturbed measurement.
    """

    seconds: float = 6.0
    min_rounds: int = 7
    attempts: int = 4
    tolerated: float = 0.08


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


def measure(call, effort):
    """Returns the `Duration` of `call()`, which must end when its work is done."""
    (seconds,), others = _quietest((call,), effort)
    return _duration(seconds, others)


def compare(numerator, denominator, effort):
    """Returns the `Ratio` of the wall times of two calls.

    The calls alternate, and the median is taken over the quotients of neighbours, so
    that a processor whose clock drifts changes both and not their ratio.
    """
    (bottom, top), others = _quietest((denominator, numerator), effort)
    return Ratio(
        *_quartiles(top / bottom), _duration(top, others), _duration(bottom, others)
    )


def _quietest(calls, effort):
    for call in calls:  # compiles, and fills the caches
        call()
    best, least = None, float("inf")
    for attempt in range(effort.attempts):
        if attempt:
            wait_until_quiet(limit=60.0, threshold=effort.tolerated)
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
    return Duration(*_quartiles(1e3 * seconds), len(seconds), others)


def _quartiles(values):
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    return float(median), float(lower), float(upper)
