"""`deq-keras benchmark half_precision`: short real trainings of each model family.

In bfloat16 and in float16 with loss scaling, and compiled by XLA, beside float32: how
far the losses are apart, how long a step takes, and which of its parts gain how much.
Ratios are of one run.
"""

from ..command import BenchmarkCommand

NAMES = ("dense", "convolutional", "mdeq", "transformer")
# Where products take most of the time; without XLA, whose convolutions take minutes.
WIDE = ("wide_convolutional", "wide_transformer")


def _measurements():
    import functools

    from . import training

    regimes = ("float32", "mixed_bfloat16", "mixed_float16")
    wide = functools.partial(training.compare, regimes=regimes)
    return {
        **{name: functools.partial(training.compare, name=name) for name in NAMES},
        **{name: functools.partial(wide, name=name) for name in WIDE},
    }


main = BenchmarkCommand(
    "half_precision",
    "Trains each family of models in lower precision and by XLA, on a quiet machine.",
    NAMES + WIDE,
    _measurements,
)
