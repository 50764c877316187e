"""The reasoning cell with attention between tokens."""

import keras

from deq_keras.core.checks import check_count
from deq_keras.layers.reasoning.token_cell import TokenCell


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

    def __init__(self, units, num_heads=4, **kwargs):
        super().__init__(units, **kwargs)
        self.num_heads = check_count("num_heads", num_heads)
        if self.units % self.num_heads:
            raise ValueError(
                "`units` must be a multiple of `num_heads`. Received: "
                f"units={units}, num_heads={num_heads}."
            )

    def make_mixing(self, name, shape):
        attention = keras.layers.MultiHeadAttention(
            self.num_heads,
            self.units // self.num_heads,
            use_bias=False,
            name=name,
            dtype=self.dtype_policy,
        )
        attention.build(shape, shape)
        return attention

    def mix(self, mixing, tokens, mask):
        if mask is not None:
            mask = mask[:, None, :]  # (B, 1, tokens): no token attends to padding.
        return mixing(tokens, tokens, attention_mask=mask)

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}
