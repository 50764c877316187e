"""Reasoning cells that mix tokens: by attention, or by a perceptron over tokens."""

import math
from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_count
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.equilibrium import EquilibriumCell

_EPSILON = 1e-5


def on_sphere(tensor: Any) -> Any:
    """Scales each vector of the last axis to a root mean square of one.

    Vectors with a root mean square far below `sqrt(1e-5)` stay short, and zero stays
    zero.
    """
    return ops.rms_normalization(tensor, axis=-1, epsilon=_EPSILON)


@keras.saving.register_keras_serializable(package="deq_keras")
class GatedMLP(CompositeLayer):
    """A gated perceptron (SwiGLU) without biases: `(silu(x A) * x B) C`.

    Args:
        expansion: Positive integer. Number of columns of A and B per feature of x.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Input shape:
        `(batch, ..., features)`.

    Output shape:
        Same as the input shape.

    Example:

    >>> tuple(GatedMLP(expansion=2)(np.ones((2, 5, 3), "float32")).shape)
    (2, 5, 3)

    Reference:
        [Shazeer, 2020](https://arxiv.org/abs/2002.05202).
    """

    def __init__(self, expansion: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.expansion = check_count("expansion", expansion)

    def build(self, input_shape: Any) -> None:
        features = input_shape[-1]
        hidden = self.expansion * features
        self.inner = self._dense(2 * hidden, "inner")
        self.outer = self._dense(features, "outer")
        self.inner.build((None, features))
        self.outer.build((None, hidden))

    def call(self, inputs: Any) -> Any:
        # Flattens to a matrix: within a loop, XLA cannot differentiate a product with
        # more axes of unknown sizes.
        rows = ops.reshape(inputs, (-1, self.outer.units))
        gate, values = ops.split(self.inner(rows), 2, axis=-1)
        return ops.reshape(self.outer(ops.silu(gate) * values), ops.shape(inputs))

    def get_config(self) -> Config:
        return {**super().get_config(), "expansion": self.expansion}

    def _dense(self, units: int, name: str) -> Any:
        return keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer="lecun_normal",
            name=name,
            dtype=self.dtype_policy,
        )


class TokenCell(EquilibriumCell):
    """Blocks that mix tokens, then features, with each token on a sphere.

    Subclasses implement `make_mixing` and `mix`.

    Args:
        units: Positive integer. Features of each token.
        num_blocks: Positive integer. Number of blocks. Defaults to `2`.
        expansion: Positive integer. Hidden features of the perceptrons per feature.
            Defaults to `2`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(
        self, units: int, num_blocks: int = 2, expansion: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.num_blocks = check_count("num_blocks", num_blocks)
        self.expansion = check_count("expansion", expansion)

    def make_mixing(self, name: str, shape: Any) -> Any:
        """Returns the layer that mixes the tokens of a block, built for tokens of shape
        `(batch, tokens, units)`."""
        raise NotImplementedError

    def mix(self, mixing: Any, tokens: Any, mask: Any) -> Any:
        """Returns the residual update that the mixing layer adds to the tokens.

        Args:
            mixing: Layer from `make_mixing`.
            tokens: Tensor of shape `(batch, tokens, units)`.
            mask: Optional tensor of shape `(batch, tokens)`, zero at padding.
        """
        raise NotImplementedError

    def build(self, input_shape: Any) -> None:
        batch, *positions, units = input_shape
        if not positions or units != self.units:
            raise ValueError(
                f"Cell '{self.name}' expects inputs of shape (batch, *positions, "
                f"{self.units}), such as those of a `BoardEmbedding` of as many units. "
                f"Received: inputs of shape {tuple(input_shape)}."
            )
        shape = (batch, None if None in positions else math.prod(positions), units)
        self.mixings, self.perceptrons = [], []
        for i in range(self.num_blocks):
            self.mixings.append(self.make_mixing(f"mixing{i}", shape))
            self.perceptrons.append(self.make_perceptron(f"perceptron{i}", shape))

    def inject(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        """Returns the inputs and the padding mask.

        Args:
            inputs: Tensor of shape `(batch, *positions, units)`.
            training: Boolean. Ignored.
            mask: Optional Boolean tensor `(batch, *positions)`, false at padding.

        Returns:
            Dict of the tensors `"inputs"` and, with a mask, `"mask"`, `(batch,
            *positions)`.
        """
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        injection = {"inputs": ops.cast(inputs, self.compute_dtype)}
        if mask is not None:
            injection["mask"] = ops.cast(mask, self.compute_dtype)
        return injection

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return ops.zeros_like(injection["inputs"])

    def call(self, state: Any, injection: Any) -> Any:
        # Boards of any rank become a sequence of tokens, and back.
        shape = ops.shape(state)
        mask = injection.get("mask")
        mask = None if mask is None else ops.reshape(mask, (shape[0], -1))
        tokens = state + injection["inputs"]
        tokens = ops.reshape(tokens, (shape[0], -1, self.units))
        for mixing, perceptron in zip(self.mixings, self.perceptrons, strict=True):
            tokens = on_sphere(tokens + self.mix(mixing, tokens, mask))
            tokens = on_sphere(tokens + perceptron(tokens))
        return ops.reshape(tokens, shape)

    def make_perceptron(self, name: str, shape: Any) -> Any:
        """Returns a `GatedMLP` built for a shape, over its last axis."""
        perceptron = GatedMLP(self.expansion, name=name, dtype=self.dtype_policy)
        perceptron.build(shape)
        return perceptron

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, TokenCell)}


@keras.saving.register_keras_serializable(package="deq_keras")
class AttentionCell(TokenCell):
    """Blocks of attention over the tokens and a perceptron over the features.

    Suited to boards of several sizes, and to rules that relate distant positions. With
    the injection x and the state z of all positions,

    ```
    h = z + x
    h = sphere(h + attention(h))                       over tokens, in each block
    h = sphere(h + mlp(h))                             over features
    f(z, x) = h
    ```

    (Jolicoeur-Martineau, 2025, with one state instead of two). `sphere` scales the
    features of a position to a root mean square of one, which bounds the state. The
    perceptrons are gated (SwiGLU). The injection must encode the positions; see
    `BoardEmbedding`.

    Args:
        units: Positive integer, a multiple of `num_heads`. Features of each position.
        num_heads: Positive integer. Number of attention heads. Defaults to `4`.
        num_blocks: Positive integer. Number of blocks. Defaults to `2`.
        expansion: Positive integer. Hidden features of the perceptrons per feature.
            Defaults to `2`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, *positions, units)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, *positions, units)`, for `inject`.

    Output shape:
        `(batch, *positions, units)`.

    Raises:
        ValueError: If an argument is out of range, or the last axis of the inputs is
            not `units`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(AttentionCell(8, num_heads=2))
    >>> equilibrium(keras.ops.ones((3, 6, 6, 8))).shape
    TensorShape([3, 6, 6, 8])

    Reference:

    - Jolicoeur-Martineau (2025), "Less is More: Recursive Reasoning with Tiny
      Networks".
    """

    def __init__(self, units: int, num_heads: int = 4, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.num_heads = check_count("num_heads", num_heads)
        if self.units % self.num_heads:
            raise ValueError(
                "`units` must be a multiple of `num_heads`. Received: "
                f"units={units}, num_heads={num_heads}."
            )

    def make_mixing(self, name: str, shape: Any) -> Any:
        attention = keras.layers.MultiHeadAttention(
            self.num_heads,
            self.units // self.num_heads,
            use_bias=False,
            name=name,
            dtype=self.dtype_policy,
        )
        attention.build(shape, shape)
        return attention

    def mix(self, mixing: Any, tokens: Any, mask: Any) -> Any:
        if mask is not None:
            mask = mask[:, None, :]  # (B, 1, tokens): no token attends to padding.
        return mixing(tokens, tokens, attention_mask=mask)

    def get_config(self) -> Config:
        return {**super().get_config(), "num_heads": self.num_heads}


@keras.saving.register_keras_serializable(package="deq_keras")
class MixerCell(TokenCell):
    """Blocks of a perceptron over the tokens and one over the features.

    Suited to small boards of one size, since it has weights for every pair of
    positions. With the injection x and the state z of all positions,

    ```
    h = z + x
    h = sphere(h + mlp_t(h))                           over tokens, in each block
    h = sphere(h + mlp(h))                             over features
    f(z, x) = h
    ```

    (Jolicoeur-Martineau, 2025, with one state instead of two). `sphere` scales the
    features of a position to a root mean square of one, which bounds the state. The
    perceptrons are gated (SwiGLU).

    Args:
        units: Positive integer. Features of each position.
        num_blocks: See `AttentionCell`. Defaults to `2`.
        expansion: Positive integer. Hidden features of the perceptrons per feature or
            token. Defaults to `2`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state, injection: See `AttentionCell`. The positions must be static.

    Raises:
        ValueError: If an argument is out of range, the last axis of the inputs is not
            `units`, or their positions are not static.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(MixerCell(8))
    >>> equilibrium(keras.ops.ones((3, 4, 4, 8))).shape
    TensorShape([3, 4, 4, 8])

    Reference:

    - Jolicoeur-Martineau (2025), "Less is More: Recursive Reasoning with Tiny
      Networks".
    """

    def make_mixing(self, name: str, shape: Any) -> Any:
        batch, num_tokens, units = shape
        if num_tokens is None:
            raise ValueError(
                f"Cell '{self.name}' has weights for each position, and expects inputs "
                "with static positions. Use an `AttentionCell` for boards of several "
                "sizes. Received: inputs of unknown size."
            )
        return self.make_perceptron(name, (batch, units, num_tokens))

    def mix(self, mixing: Any, tokens: Any, mask: Any) -> Any:
        if mask is not None:
            tokens = tokens * mask[..., None]
        mixed = mixing(ops.transpose(tokens, (0, 2, 1)))  # (B, units, tokens)
        return ops.transpose(mixed, (0, 2, 1))
