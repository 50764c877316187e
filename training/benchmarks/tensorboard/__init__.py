"""`deq-keras benchmark tensorboard`: what it costs to write event files.

The time of a training step with all that writes them over that of a step without, in
epochs that take turns. Ratios are of one run.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import overhead

    return {"digits": overhead.overhead}


main = BenchmarkCommand(
    "tensorboard",
    "Measures training with and without event files, on a quiet machine.",
    ("digits",),
    _measurements,
)
