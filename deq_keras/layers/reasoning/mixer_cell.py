"""The reasoning cell with a perceptron over tokens, for boards of one size."""

import keras
from keras import ops

from deq_keras.layers.reasoning.token_cell import TokenCell


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
        num_blocks: Positive integer. Number of blocks. Defaults to `2`.
        expansion: Positive integer. Hidden features of the perceptrons per feature or
            token. Defaults to `2`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, *positions, units)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, *positions, units)`, for `inject`, such as the outputs of a
        `BoardEmbedding`. The positions must be static.

    Output shape:
        `(batch, *positions, units)`.

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

    def make_mixing(self, name, shape):
        batch, num_tokens, units = shape
        if num_tokens is None:
            raise ValueError(
                f"Cell '{self.name}' has weights for each position, and expects inputs "
                "with static positions. Use an `AttentionCell` for boards of several "
                "sizes. Received: inputs of unknown size."
            )
        return self.make_perceptron(name, (batch, units, num_tokens))

    def mix(self, mixing, tokens, mask):
        if mask is not None:
            tokens = tokens * mask[..., None]
        mixed = mixing(ops.transpose(tokens, (0, 2, 1)))  # (B, units, tokens)
        return ops.transpose(mixed, (0, 2, 1))
