"""How the kernels of cells start."""

import keras

# U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)): what weight-normalized layers of the
# reference, the authors' PyTorch code (locuslab/deq), start from in effect.
FAN_IN_UNIFORM = {
    "class_name": "VarianceScaling",
    "config": {"scale": 1 / 3, "mode": "fan_in", "distribution": "uniform"},
}

# N(0, 0.01): what the reference gives the convolutions of its vision models that are
# not weight-normalized. All are followed by a norm, which undoes the scale.
SMALL_NORMAL = {"class_name": "RandomNormal", "config": {"stddev": 0.01}}


def fresh(initializer):
    """Returns a copy of an initializer that draws numbers of its own.

    One initializer object without a seed draws the same numbers every time, so layers
    that share it start alike.
    """
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer
