"""The arrays of the benchmark's workloads, in NumPy, for every library alike."""

from typing import NamedTuple

import numpy as np

NAMES = ("transformer_layer", "conv_block", "tiny_mlp")


class Arrays(NamedTuple):
    """What defines one workload, in float64 and in Keras' layouts.

    Attributes:
        weights: dict from name to array, in the order in which they were drawn, which
            is also the order of the cells' variables. Dense kernels are `(in, out)`,
            convolution kernels `(height, width, in, out)`.
        injection: the input x, of the state's shape: `(batch, length, width)`,
            `(batch, height, width, channels)` or `(batch, 1)`.
        target: like the injection; the training step's loss is mean((z - target)^2).
    """

    weights: dict
    injection: np.ndarray
    target: np.ndarray


def arrays(name, **sizes):
    """Returns the `Arrays` of a workload; equal names and sizes give equal arrays.

    Args:
        name: one of `NAMES`.
        **sizes: the workload's sizes, where they differ from the benchmark's. Tests use
            smaller ones.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in _BUILDERS:
        raise ValueError(
            f"Unknown workload. Expected one of {', '.join(NAMES)}. "
            f"Received: name={name!r}."
        )
    return _BUILDERS[name](np.random.RandomState(1), **sizes)


def _transformer_layer(random, batch=16, length=128, width=256, inner=1024):
    weights = {
        "qkv_kernel": random.randn(width, 3 * width) / np.sqrt(width),
        "qkv_bias": np.zeros(3 * width),
        "output_kernel": 0.5 * random.randn(width, width) / np.sqrt(width),
        "output_bias": np.zeros(width),
        "attention_scale": np.ones(width),
        "attention_shift": np.zeros(width),
        "inner_kernel": random.randn(width, inner) / np.sqrt(width),
        "inner_bias": np.zeros(inner),
        "outer_kernel": 0.5 * random.randn(inner, width) / np.sqrt(inner),
        "outer_bias": np.zeros(width),
        "feed_forward_scale": np.ones(width),
        "feed_forward_shift": np.zeros(width),
    }
    injection = random.randn(batch, length, width)
    return Arrays(weights, injection, _target(injection.shape))


def _conv_block(random, batch=16, size=32, channels=64):
    def kernel(scale):
        drawn = random.randn(3, 3, channels, channels)
        return scale * drawn / np.sqrt(9 * channels)

    weights = {"first_kernel": kernel(1.0), "second_kernel": kernel(0.5)}
    for norm in ("first", "second", "third"):
        weights[f"{norm}_scale"] = np.ones(channels)
        weights[f"{norm}_shift"] = np.zeros(channels)
    # Drawn with the channels first, so that the values do not depend on the layout.
    shape = (batch, channels, size, size)
    injection, target = random.randn(*shape), _target(shape)
    return Arrays(weights, _channels_last(injection), _channels_last(target))


def _tiny_mlp(random, batch=4096, hidden=50):
    weights = {
        "hidden_kernel": random.randn(2, hidden),
        "hidden_bias": 0.1 * random.randn(hidden),
        "output_kernel": 0.3 * random.randn(hidden, 1) / np.sqrt(hidden),
        "output_bias": np.zeros(1),
    }
    injection = random.randn(batch, 1)
    return Arrays(weights, injection, _target(injection.shape))


def _target(shape):
    return np.random.RandomState(9).randn(*shape)


def _channels_last(maps):
    return np.ascontiguousarray(maps.transpose(0, 2, 3, 1))


_BUILDERS = dict(zip(NAMES, (_transformer_layer, _conv_block, _tiny_mlp), strict=True))
