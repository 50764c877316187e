"""`deq-keras benchmark splittings`: what a splitting costs over its evaluations.

A solve by Peaceman and Rachford over a bare loop of as many of its steps, both with the
resolvent that is computed once: three monotone networks. Ratios are of one run.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import overhead

    return overhead.MEASUREMENTS


main = BenchmarkCommand(
    "splittings",
    "Measures the solves of monotone networks, on a quiet machine.",
    ("dense", "convolution", "multiscale"),
    _measurements,
)
