"""Workloads of the benchmarks: a transformer layer, a convolutional block, an MLP.

NumPy draws weights and inputs, which are the same for every library.
"""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from deq_keras import layers


class Arrays(NamedTuple):
    """What defines one workload, in float64 and in Keras' layouts.

    Attributes:
        weights: Dict from name to array, in the order of drawing and of the cell's
            variables. Dense kernels are `(in, out)`, convolution kernels
            `(height, width, in, out)`.
        injection: The input x, shaped like the state: `(batch, length, width)`,
            `(batch, height, width, channels)` or `(batch, 1)`.
        target: Array like the injection. The loss of a training step is
            mean((z - target)^2).
    """

    weights: dict
    injection: np.ndarray
    target: np.ndarray


def arrays(name, **sizes):
    """Returns the `Arrays` of a workload; equal names and sizes give equal arrays.

    Args:
        name: String. One of `NAMES`.
        **sizes: Sizes that replace the benchmark's. Tests use smaller ones.

    Raises:
        ValueError: For an unknown name.
    """
    if name not in _DRAW:
        raise ValueError(
            f"Unknown workload. Expected one of {', '.join(NAMES)}. "
            f"Received: name={name!r}."
        )
    return _DRAW[name](np.random.RandomState(1), **sizes)


def _draw_transformer_layer(random, batch=16, length=128, width=256, inner=1024):
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
    return Arrays(weights, injection, _draw_target(injection.shape))


def _draw_conv_block(random, batch=16, size=32, channels=64):
    def kernel(scale):
        drawn = random.randn(3, 3, channels, channels)
        return scale * drawn / np.sqrt(9 * channels)

    weights = {"first_kernel": kernel(1.0), "second_kernel": kernel(0.5)}
    for norm in ("first", "second", "third"):
        weights[f"{norm}_scale"] = np.ones(channels)
        weights[f"{norm}_shift"] = np.zeros(channels)
    # Drawn with the channels first, so that the values do not depend on the layout.
    shape = (batch, channels, size, size)
    maps = random.randn(*shape), _draw_target(shape)
    return Arrays(
        weights, *(np.ascontiguousarray(m.transpose(0, 2, 3, 1)) for m in maps)
    )


def _draw_tiny_mlp(random, batch=4096, hidden=50):
    weights = {
        "hidden_kernel": random.randn(2, hidden),
        "hidden_bias": 0.1 * random.randn(hidden),
        "output_kernel": 0.3 * random.randn(hidden, 1) / np.sqrt(hidden),
        "output_bias": np.zeros(1),
    }
    injection = random.randn(batch, 1)
    return Arrays(weights, injection, _draw_target(injection.shape))


def _draw_target(shape):
    return np.random.RandomState(9).randn(*shape)


class TransformerLayerCell(layers.EquilibriumCell):
    """A post-norm transformer layer without mask and dropout, injected at its input.

        a = z + x
        h = LayerNorm(a + Attention(a))
        f(z, x) = LayerNorm(h + W2 relu(W1 h + b1) + b2)

    Args:
        num_heads: Positive integer. Heads of the self-attention. Defaults to `8`.
        inner: Positive integer. Width of the feed-forward network. Defaults to `1024`.

    Call arguments:
        state: Tensor `(batch, length, width)`.
        injection: Tensor like the state.
    """

    def __init__(self, num_heads=8, inner=1024, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.inner = inner

    def build(self, state_shape, injection_shape=None):
        width = state_shape[-1]
        dtype = self.dtype_policy
        dense = functools.partial(keras.layers.Dense, dtype=dtype)
        norm = functools.partial(
            keras.layers.LayerNormalization, epsilon=1e-5, dtype=dtype
        )
        self.query_key_value = dense(3 * width)
        self.attention_output = dense(width)
        self.attention_norm = norm()
        self.inner_dense = dense(self.inner, activation="relu")
        self.outer_dense = dense(width)
        self.feed_forward_norm = norm()
        for layer in (
            self.query_key_value,
            self.attention_output,
            self.attention_norm,
            self.inner_dense,
            self.feed_forward_norm,
        ):
            layer.build(state_shape)
        self.outer_dense.build((*state_shape[:-1], self.inner))

    def call(self, state, injection):
        attended = state + injection
        hidden = self.attention_norm(attended + self._attention(attended))
        update = self.outer_dense(self.inner_dense(hidden))
        return self.feed_forward_norm(hidden + update)

    def _attention(self, inputs):
        _, length, width = inputs.shape
        head = width // self.num_heads
        packed = self.query_key_value(inputs)
        packed = ops.reshape(packed, (-1, length, 3, self.num_heads, head))
        query, key, value = ops.unstack(
            ops.transpose(packed, (2, 0, 3, 1, 4)), num=3
        )  # (B, H, L, K) each
        scores = ops.matmul(query * head**-0.5, ops.swapaxes(key, -1, -2))  # (B,H,L,L)
        mixed = ops.matmul(ops.softmax(scores), value)  # (B, H, L, K)
        mixed = ops.transpose(mixed, (0, 2, 1, 3))
        mixed = ops.reshape(mixed, (-1, length, width))  # (B, L, H*K)
        return self.attention_output(mixed)


class ConvBlockCell(layers.EquilibriumCell):
    """A residual block of two 3x3 convolutions and three group norms.

        y = x + conv(relu(GroupNorm(conv(z))))
        f(z, x) = GroupNorm(relu(z + GroupNorm(y)))

    Args:
        groups: Positive integer. Groups of the normalizations. Defaults to `8`.

    Call arguments:
        state: Tensor `(batch, height, width, channels)`.
        injection: Tensor like the state.
    """

    def __init__(self, groups=8, **kwargs):
        super().__init__(**kwargs)
        self.groups = groups

    def build(self, state_shape, injection_shape=None):
        dtype = self.dtype_policy
        self.convolutions = [
            keras.layers.Conv2D(
                state_shape[-1], 3, padding="same", use_bias=False, dtype=dtype
            )
            for _ in range(2)
        ]
        self.norms = [
            layers.GroupNormalization(self.groups, epsilon=1e-5, dtype=dtype)
            for _ in range(3)
        ]
        for layer in (*self.convolutions, *self.norms):
            layer.build(state_shape)

    def call(self, state, injection):
        first_convolution, second_convolution = self.convolutions
        first_norm, second_norm, third_norm = self.norms
        hidden = ops.relu(first_norm(first_convolution(state)))
        hidden = injection + second_convolution(hidden)
        return third_norm(ops.relu(state + second_norm(hidden)))


class TinyMLPCell(layers.EquilibriumCell):
    """One hidden layer on a scalar state: nearly all of a solve is overhead.

        f(z, x) = tanh([z, x] A1 + b1) A2 + b2

    Args:
        hidden: Positive integer. Hidden units. Defaults to `50`.

    Call arguments:
        state: Tensor `(batch, 1)`.
        injection: Tensor `(batch, 1)`.
    """

    def __init__(self, hidden=50, **kwargs):
        super().__init__(**kwargs)
        self.hidden = hidden

    def build(self, state_shape, injection_shape=None):
        batch, features = state_shape
        self.hidden_dense = keras.layers.Dense(
            self.hidden, activation="tanh", dtype=self.dtype_policy
        )
        self.output_dense = keras.layers.Dense(features, dtype=self.dtype_policy)
        self.hidden_dense.build((batch, 2 * features))
        self.output_dense.build((batch, self.hidden))

    def call(self, state, injection):
        joined = ops.concatenate([state, injection], axis=-1)  # (B, 2)
        return self.output_dense(self.hidden_dense(joined))


class Workload(NamedTuple):
    """What is solved.

    Attributes:
        name: String.
        cell: A built `EquilibriumCell` that carries the workload's weights.
        injection: Inputs of the cell's `inject`, in its compute dtype; for the cells
            of this module a tensor like the state.
        target: Nest like the state, float32 (float64 for a float64 cell).
    """

    name: str
    cell: Any
    injection: tf.Tensor
    target: Any


def sized(name, sizes=None):
    """Returns sizes for `arrays`.

    Args:
        name: String. One of `NAMES`.
        sizes: A key of `SIZES`, or a dict, which is returned. `None`: the default.
    """
    return SIZES[sizes].get(name, {}) if isinstance(sizes, str) else sizes or {}


def build(name, dtype="float32", sizes=None, **cell_arguments):
    """Returns the `Workload` of a name.

    Args:
        name: String. One of `NAMES`.
        dtype: Dtype policy of the cell, such as `"float64"` or `"mixed_bfloat16"`.
            Defaults to `"float32"`.
        sizes: See `sized`.
        **cell_arguments: Arguments of the cell that replace the benchmark's.
    """
    sizes = sized(name, sizes)
    if "inner" in sizes:
        cell_arguments = {"inner": sizes["inner"], **cell_arguments}
    values = arrays(name, **sizes)
    cell = _CELLS[name](dtype=dtype, **cell_arguments)
    shape = values.injection.shape
    cell.build(shape, shape)
    cell.set_weights(list(values.weights.values()))
    return Workload(
        name,
        cell,
        injection=tf.constant(values.injection, cell.compute_dtype),
        target=tf.constant(values.target, cell.variable_dtype),
    )


_DRAW = {
    "transformer_layer": _draw_transformer_layer,
    "conv_block": _draw_conv_block,
    "tiny_mlp": _draw_tiny_mlp,
}
_CELLS = {
    "transformer_layer": TransformerLayerCell,
    "conv_block": ConvBlockCell,
    "tiny_mlp": TinyMLPCell,
}
NAMES = tuple(_DRAW)
SIZES = {
    # For two processors.
    "default": {},
    # Fill a GPU of 80 GB.
    "large": {
        "transformer_layer": {
            "batch": 64,
            "length": 256,
            "width": 1024,
            "inner": 4096,
        },
        "conv_block": {"batch": 128, "channels": 256},
    },
}
