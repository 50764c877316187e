"""Confidence bound of a probability."""

import functools

import numpy as np

from deq_keras.core.checks import check_count, check_integer, check_open_fraction


@functools.lru_cache(4096)
def upper_bound(num_changed: int, num_samples: int, confidence: float = 0.95) -> float:
    """Returns the upper Clopper-Pearson bound of a probability, one-sided.

    It is the probability p for which at most `num_changed` of `num_samples` independent
    events happen with probability `1 - confidence`.

    Args:
        num_changed: Integer in [0, num_samples]. Number of events.
        num_samples: Positive integer.
        confidence: Float in (0, 1). Defaults to `0.95`.

    Example:

    >>> round(deq_keras.tuning.upper_bound(0, 1497), 4)
    0.002

    Reference:

    - Clopper & Pearson (1934), "The Use of Confidence or Fiducial Limits Illustrated in
      the Case of the Binomial".
    """
    check_count("num_samples", num_samples)
    check_integer("num_changed", num_changed, 0, num_samples)
    check_open_fraction("confidence", confidence)
    if num_changed == num_samples:
        return 1.0
    k = np.arange(num_changed + 1)
    log_factorial = np.cumsum(np.log(np.maximum(np.arange(num_samples + 1), 1)))
    log_binomial = log_factorial[-1] - log_factorial[k] - log_factorial[::-1][k]
    low, high = num_changed / num_samples, 1.0
    for _ in range(60):
        p = (low + high) / 2
        terms = log_binomial + k * np.log(p) + (num_samples - k) * np.log1p(-p)
        is_likely = np.exp(terms).sum() > 1.0 - confidence
        low, high = (p, high) if is_likely else (low, p)
    return float(high)
