"""`deq-keras benchmark half_precision`: short real trainings of each model family.

In bfloat16 and in float16 with loss scaling, and compiled by XLA, beside float32: how
far the losses are apart, how long a step takes, and which of its parts gain how much.
Ratios are of one run.
"""

from ..command import BenchmarkCommand

NAMES = ("dense", "convolutional", "mdeq", "transformer")


def _measurements():
    import functools

    from . import training

    return {name: functools.partial(training.compare, name=name) for name in NAMES}


main = BenchmarkCommand(
    "half_precision",
    "Trains each family of models in lower precision and by XLA, on a quiet machine.",
    NAMES,
    _measurements,
)
