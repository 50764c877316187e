"""The cell of the DEQ-Transformer."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM, fresh
from deq_keras.layers.language.segment_memory import SegmentCell
from deq_keras.layers.language.transformer_branches import TransformerBranches
from deq_keras.layers.normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerCell(TransformerBranches, SegmentCell):
    """Transformer layer with a memory: the cell of the DEQ-Transformer.

    With the injection u of the inputs x, which is added to the queries, keys and
    values,

    ```
    a       = z + m1 * attention(z, u)                          h = norm(a)
    f(z, x) = h + m3 * (W2 (m2 * relu(W1 h + b1)) + b2)         normalized again, or not
    ```

    With `normalize_first=False` (post-LN), the result is normalized too. With
    `normalize_first=True` (pre-LN), it is not, and the attention sees `norm(z)` instead
    of z. In both cases the second branch starts from the normalized h, as in the
    reference, the authors' PyTorch code (locuslab/deq). Starting from a instead, f
    would contain z unchanged and barely contract. The norms are not trainable. The
    dropout masks m are fixed during a solve.

    Args:
        units: Positive even integer, a multiple of `num_heads`. Size of the states.
        num_heads: Positive integer. Number of attention heads.
        intermediate_dim: Positive integer. Number of hidden units of the second branch.
        normalize_first: Boolean. Whether the norm precedes the attention (pre-LN) or
            follows both branches (post-LN). Defaults to `False`.
        local_size: Positive integer or `None`. Number of positions that a position
            sees, including its own. Defaults to `None`, all positions.
        dropout_rate: Float in `[0, 1)`. Rate at which channels are dropped after both
            branches, in the hidden layer and in the sinusoids. Defaults to `0.0`.
        attention_dropout_rate: Float in `[0, 1)`. Rate at which attention weights are
            dropped. Defaults to `0.0`.
        weight_normalization: Boolean. Whether all kernels except the injection's are
            weight normalized. Defaults to `True`.
        kernel_initializer: Initializer of all kernels except the injection's. Defaults
            to `None`, a uniform distribution on `(-1, 1) / sqrt(fan_in)`, as in effect
            in the reference.
        injection_initializer: Initializer of the injection's kernel and of the biases
            of the attention. Defaults to `None`, a normal distribution with standard
            deviation 0.01, as in the reference.
        seed: Integer. Seed of the dropout. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, length, units)`.
        injection: Nest of tensors. Result of `inject` for this solve.

    Input shape:
        `(batch, length, features)` or a dict; see `inject`.

    Output shape:
        `(batch, length, units)`.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> cell = TransformerCell(units=16, num_heads=2, intermediate_dim=64)
    >>> equilibrium = deq_keras.layers.DEQ(cell)
    >>> tuple(equilibrium(keras.random.normal((2, 5, 16))).shape)
    (2, 5, 16)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1909.01377), section 4.
        [Bai, Koltun and Kolter, 2021](https://arxiv.org/abs/2106.14342), figure 2.
    """

    noise_shape = (None, 1, None)  # One mask for all positions.

    def __init__(
        self,
        units: int,
        num_heads: int,
        intermediate_dim: int,
        *,
        kernel_initializer: Any = None,
        injection_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        initializer = kernel_initializer or FAN_IN_UNIFORM
        super().__init__(units, num_heads, intermediate_dim, initializer, **kwargs)
        self.injection_initializer = keras.initializers.get(
            injection_initializer or keras.initializers.RandomNormal(stddev=0.01)
        )
        self.injection_projection = keras.layers.Dense(
            3 * self.units,  # Into queries, keys and values.
            kernel_initializer=fresh(self.injection_initializer),
            name="injection_projection",
            dtype=self.dtype_policy,
        )
        self._create_branches(self.injection_initializer)
        self.norm = LayerNormalization(
            center=False, scale=False, name="norm", dtype=self.dtype_policy
        )

    def build(self, inputs_shape: Any) -> None:
        if isinstance(inputs_shape, dict):
            inputs_shape = inputs_shape["inputs"]
        state_shape = (*inputs_shape[:-1], self.units)
        self.injection_projection.build(inputs_shape)
        self._build_branches(state_shape)
        self.norm.build(state_shape)

    def inject(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        """Projects inputs and positions, and fixes memory, kernels and masks.

        Args:
            inputs: Tensor `(batch, length, features)`; or a dict with this tensor as
                `"inputs"`, the optional `"memory"` of previous positions and the
                optional `"constants"` of the cell. The memory is a dict of `"states"`,
                `(batch, memory_length, units)`, and `"injections"`, `(batch,
                memory_length, 3 * units)`; or of `"keys"` and `"values"`. It may have a
                `"mask"`; see `RelativeAttention.prepare`.
            training: Boolean. Whether to sample dropout masks.
            mask: Optional Boolean tensor `(batch, length)`, false at padding, which
                other positions ignore.

        Returns:
            Nest of tensors.
        """
        given = inputs if isinstance(inputs, dict) else {"inputs": inputs}
        if not self.built:
            self.build(tuple(given["inputs"].shape))
        constants = given.get("constants") or self._branch_kernels()
        injection = self.injection_projection(given["inputs"])
        return self._prepare(given, injection, constants, training, mask)

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return ops.zeros_like(injection["attention"]["injection"][..., : self.units])

    def _first_norm(self, state: Any) -> Any:
        return self.norm(state)

    def call(self, state: Any, injection: Any) -> Any:
        hidden = self.norm(self._with_attention(state, injection))
        outputs = hidden + self._branch(hidden, injection)
        return outputs if self.normalize_first else self.norm(outputs)

    @property
    def output_dim(self) -> int:
        return self.units

    @property
    def memory_sizes(self) -> dict[str, int]:
        return {"states": self.units, "injections": 3 * self.units}

    def extract_memory(self, inputs: Any, state: Any) -> dict[str, Any]:
        # Stores states and injections, not keys and values: reading the memory computes
        # keys and values with the current weights.
        return {"states": state, "injections": self.injection_projection(inputs)}

    def features(self, state: Any) -> Any:
        return state

    def first_state(self, inputs: Any) -> Any:
        """Returns zeros, the initial state of a stack of layers."""
        return ops.zeros((*ops.shape(inputs)[:-1], self.units), inputs.dtype)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, TransformerCell)}
