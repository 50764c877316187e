"""`deq-keras benchmark distribution`: what replicas on one machine's processor cost.

The time of training steps on two logical devices over that on one device, which has the
same processors, and of the same global batch. Input is part of a step.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import mirrored

    return {"mirrored": mirrored.measured}


main = BenchmarkCommand(
    "distribution",
    "Measures training steps of mirrored devices, on a quiet machine.",
    ("mirrored",),
    _measurements,
)
