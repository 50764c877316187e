"""The cell of the DEQ-Transformer."""

import keras
from keras import ops

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_optional_count,
    check_rate,
    check_seed,
)
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM, fresh
from deq_keras.layers.language.relative_attention import RelativeAttention
from deq_keras.layers.language.segment_cell import SegmentCell
from deq_keras.layers.language.solve_kernels import apply_dense, solve_kernels
from deq_keras.layers.normalization import LayerNormalization, WeightNormalizedDense
from deq_keras.layers.variational_dropout import VariationalDropout


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerCell(SegmentCell):
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

    def __init__(
        self,
        units,
        num_heads,
        intermediate_dim,
        normalize_first=False,
        local_size=None,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        weight_normalization=True,
        kernel_initializer=None,
        injection_initializer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.num_heads = check_count("num_heads", num_heads)
        self.intermediate_dim = check_count("intermediate_dim", intermediate_dim)
        self.normalize_first = check_boolean("normalize_first", normalize_first)
        self.local_size = check_optional_count("local_size", local_size)
        self.dropout_rate = check_rate("dropout_rate", dropout_rate)
        self.attention_dropout_rate = check_rate(
            "attention_dropout_rate", attention_dropout_rate
        )
        self.weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        self.kernel_initializer = keras.initializers.get(
            kernel_initializer or FAN_IN_UNIFORM
        )
        self.injection_initializer = keras.initializers.get(
            injection_initializer or keras.initializers.RandomNormal(stddev=0.01)
        )
        self.seed = check_seed("seed", seed)
        self._create_layers()

    def _create_layers(self):
        self.injection_projection = keras.layers.Dense(
            3 * self.units,  # Into queries, keys and values.
            kernel_initializer=fresh(self.injection_initializer),
            name="injection_projection",
            dtype=self.dtype_policy,
        )
        self.attention = RelativeAttention(
            self.num_heads,
            local_size=self.local_size,
            dropout_rate=self.attention_dropout_rate,
            position_dropout_rate=self.dropout_rate,
            weight_normalization=self.weight_normalization,
            kernel_initializer=fresh(self.kernel_initializer),
            bias_initializer=fresh(self.injection_initializer),
            # The attention uses this seed and the next one, the dropout `self.seed`.
            seed=None if self.seed is None else self.seed + 1,
            name="attention",
            dtype=self.dtype_policy,
        )
        self.expansion = self._dense(self.intermediate_dim, "expansion")
        self.contraction = self._dense(self.units, "contraction")
        self.norm = LayerNormalization(
            center=False, scale=False, name="norm", dtype=self.dtype_policy
        )
        self.dropout = VariationalDropout(
            self.dropout_rate,
            noise_shape=(None, 1, None),
            seed=self.seed,
            name="dropout",
            dtype=self.dtype_policy,
        )

    def _dense(self, units, name):
        cls = WeightNormalizedDense if self.weight_normalization else keras.layers.Dense
        return cls(
            units,
            kernel_initializer=fresh(self.kernel_initializer),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, inputs_shape):
        if isinstance(inputs_shape, dict):
            inputs_shape = inputs_shape["inputs"]
        state_shape = (*inputs_shape[:-1], self.units)
        self.injection_projection.build(inputs_shape)
        for layer in (self.attention, self.expansion, self.norm):
            layer.build(state_shape)
        self.contraction.build((*inputs_shape[:-1], self.intermediate_dim))

    def constants(self, num_keys, training=False):
        """Computes kernels and positions, which depend on neither inputs nor state.

        `inject` calls this method in each solve. For many solves with the same weights
        and the same number of positions, call it once and pass the result to `inject`.

        Args:
            num_keys: Integer or scalar tensor. Number of positions of the memory and
                the sequence together.
            training: Boolean. Whether to drop channels of the sinusoids.

        Returns:
            Nest of tensors.
        """
        return {
            "attention": self.attention.constants(num_keys, training),
            **self._branch_kernels(),
        }

    def _branch_kernels(self):
        return solve_kernels(expansion=self.expansion, contraction=self.contraction)

    def inject(self, inputs, training=False, mask=None):
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
        inputs, memory = given["inputs"], given.get("memory")
        if not self.built:
            self.build(tuple(inputs.shape))
        constants = given.get("constants") or self._branch_kernels()
        if memory is not None and self.normalize_first and "states" in memory:
            # Keys and values are already computed from normalized states.
            memory = {**memory, "states": self.norm(memory["states"])}
        attention = self.attention.prepare(
            self.injection_projection(inputs),
            memory,
            training,
            constants.get("attention"),
            mask,
        )
        injection = {**constants, "attention": attention}
        if training and self.dropout_rate > 0:
            injection["masks"] = self._sample_masks(inputs)
        return injection

    def _sample_masks(self, inputs):
        batch, length = ops.shape(inputs)[:2]
        sizes = {
            "attention": self.units,
            "expansion": self.intermediate_dim,
            "contraction": self.units,
        }
        return {
            name: self.dropout.sample_mask((batch, length, size), training=True)
            for name, size in sizes.items()
        }

    def initial_state(self, injection):
        """Returns a state of zeros."""
        return ops.zeros_like(injection["attention"]["injection"][..., : self.units])

    def call(self, state, injection):
        masks = injection.get("masks", {})
        attended = self.norm(state) if self.normalize_first else state
        attended = self.attention(attended, injection["attention"])
        hidden = self.norm(state + _masked(attended, masks.get("attention")))
        branch = apply_dense(self.expansion, hidden, injection.get("expansion"))
        branch = _masked(ops.relu(branch), masks.get("expansion"))
        branch = apply_dense(self.contraction, branch, injection.get("contraction"))
        branch = _masked(branch, masks.get("contraction"))
        outputs = hidden + branch
        return outputs if self.normalize_first else self.norm(outputs)

    @property
    def output_dim(self):
        return self.units

    @property
    def memory_sizes(self):
        return {"states": self.units, "injections": 3 * self.units}

    def remembered(self, inputs, state):
        # Stores states and injections, not keys and values: reading the memory computes
        # keys and values with the current weights.
        return {"states": state, "injections": self.injection_projection(inputs)}

    def features(self, state):
        return state

    def first_state(self, inputs):
        """Returns zeros, the initial state of a stack of layers."""
        return ops.zeros((*ops.shape(inputs)[:-1], self.units), inputs.dtype)

    def keys_and_values(self, state, injection):
        """Returns the keys and values of an equilibrium, for the memory.

        Args:
            state: Tensor `(batch, length, units)`.
            injection: Result of `inject` for the solve.

        Returns:
            Two tensors `(batch, num_heads, length, head_dim)`.
        """
        state = self.norm(state) if self.normalize_first else state
        return self.attention.keys_and_values(state, injection["attention"])

    def get_config(self):
        config = {
            "units": self.units,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "normalize_first": self.normalize_first,
            "local_size": self.local_size,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "weight_normalization": self.weight_normalization,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "injection_initializer": keras.initializers.serialize(
                self.injection_initializer
            ),
            "seed": self.seed,
        }
        return {**super().get_config(), **config}


def _masked(tensor, mask):
    return tensor if mask is None else tensor * mask
