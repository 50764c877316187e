"""Initializers of the kernels of cells."""

from typing import Any

import keras

# U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), the effective initial distribution of
# weight-normalized layers in the reference, the authors' PyTorch code (locuslab/deq).
FAN_IN_UNIFORM = {
    "class_name": "VarianceScaling",
    "config": {"scale": 1 / 3, "mode": "fan_in", "distribution": "uniform"},
}

# N(0, 0.01), the reference's initializer of convolutions without weight normalization
# in vision models. All of them are followed by a norm, which removes the scale.
SMALL_NORMAL = {"class_name": "RandomNormal", "config": {"stddev": 0.01}}


def fresh(initializer: Any) -> Any:
    """Returns a copy of an initializer that draws different numbers.

    An initializer object without a seed draws the same numbers every time, so layers
    that share it would start with equal weights.
    """
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer
