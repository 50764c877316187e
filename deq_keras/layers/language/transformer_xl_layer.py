"""The layer of Transformer-XL."""

import keras
from keras import ops

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_optional_count,
    check_rate,
    check_seed,
)
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.kernel_initializer import fresh
from deq_keras.layers.language.relative_attention import RelativeAttention
from deq_keras.layers.language.solve_kernels import apply_dense, solve_kernels
from deq_keras.layers.normalization import LayerNormalization, WeightNormalizedDense
from deq_keras.layers.variational_dropout import VariationalDropout


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLLayer(CompositeLayer):
    """The layer of Transformer-XL: relative attention with a memory, then a branch.

    ```
    h       = norm_1(z + m1 * attention(z))
    outputs = norm_2(h + m3 * (W2 (m2 * relu(W1 h + b1)) + b2))
    ```

    or, with `normalize_first`, `h = z + m1 * attention(norm_1(z))` and
    `h + m3 * (W2 (m2 * relu(W1 norm_2(h) + b1)) + b2)`. A `TransformerStack` uses it
    like a `TransformerCell`, but without an injection: only the first layer sees the
    inputs of the model. Norms have weights, and dropout is drawn for each position. The
    attention has its own biases and an output bias. Dropout of the sinusoids drops
    channels.

    Args:
        units: Positive even integer, a multiple of `num_heads`. Size of the states and
            of the inputs.
        num_heads: Positive integer. Number of attention heads.
        intermediate_dim: Positive integer. Number of hidden units of the second branch.
        normalize_first: Boolean. Whether the norms precede attention and branch
            (pre-LN) or follow them (post-LN). Defaults to `False`.
        local_size: Positive integer or `None`. Number of positions that a position
            sees, including its own. Defaults to `None`, all positions.
        dropout_rate: Float in `[0, 1)`. Rate of the masks m, and of the dropout of the
            sinusoids. Defaults to `0.0`.
        attention_dropout_rate: Float in `[0, 1)`. Rate at which attention weights are
            dropped. Defaults to `0.0`.
        weight_normalization: Boolean. Whether the kernels are weight normalized.
            Defaults to `False`.
        kernel_initializer: Initializer of the kernels and of the biases of the
            attention. Defaults to `None`, a normal distribution with standard deviation
            0.02, as in the published code (kimiyoung/transformer-xl).
        seed: Integer. Seed of the dropout. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, length, units)`.
        prepared: Nest of tensors. Result of `inject` for this call.

    Input shape:
        `(batch, length, units)`.

    Output shape:
        `(batch, length, units)`.

    Raises:
        ValueError: If an argument is out of range, or the last axis of the inputs is
            not `units`.

    Example:

    >>> layers = [TransformerXLLayer(8, 2, intermediate_dim=16) for _ in range(4)]
    >>> stack = deq_keras.layers.TransformerStack(layers, num_layers=4, length=6)
    >>> tuple(stack(keras.random.normal((2, 5, 8))).shape)
    (2, 5, 8)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.
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
        weight_normalization=False,
        kernel_initializer=None,
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
            kernel_initializer or keras.initializers.RandomNormal(stddev=0.02)
        )
        self.seed = check_seed("seed", seed)
        self._create_layers()

    def _create_layers(self):
        self.attention = RelativeAttention(
            self.num_heads,
            local_size=self.local_size,
            dropout_rate=self.attention_dropout_rate,
            position_dropout_rate=self.dropout_rate,
            weight_normalization=self.weight_normalization,
            kernel_initializer=fresh(self.kernel_initializer),
            bias_initializer=fresh(self.kernel_initializer),
            # The attention uses this seed and the next one, the dropout `self.seed`.
            seed=None if self.seed is None else self.seed + 1,
            name="attention",
            dtype=self.dtype_policy,
        )
        self.expansion = self._dense(self.intermediate_dim, "expansion")
        self.contraction = self._dense(self.units, "contraction")
        self.attention_norm, self.branch_norm = (
            LayerNormalization(name=f"{name}_norm", dtype=self.dtype_policy)
            for name in ("attention", "branch")
        )
        self.dropout = VariationalDropout(
            self.dropout_rate, seed=self.seed, name="dropout", dtype=self.dtype_policy
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
        if inputs_shape[-1] != self.units:
            raise ValueError(
                f"Layer '{self.name}' adds to its inputs, which must have the size of "
                f"its states, units={self.units}. Received: inputs of shape "
                f"{tuple(inputs_shape)}."
            )
        for layer in (
            self.attention,
            self.expansion,
            self.attention_norm,
            self.branch_norm,
        ):
            layer.build(inputs_shape)
        self.contraction.build((*inputs_shape[:-1], self.intermediate_dim))

    def constants(self, num_keys, training=False):
        """See `TransformerCell.constants`."""
        return {
            "attention": self.attention.constants(num_keys, training),
            **solve_kernels(expansion=self.expansion, contraction=self.contraction),
        }

    def first_state(self, inputs):
        """Returns the inputs, the state that enters the first layer."""
        return inputs

    def remembered(self, inputs, state):
        """Returns the memory of a layer, which consists of its previous inputs."""
        del inputs
        return {"states": state, "injections": ops.zeros_like(state[..., :1])}

    def inject(self, given, training=False, mask=None):
        """Fixes memory, kernels and masks, as `TransformerCell.inject` does.

        Args:
            given: Dict of `"inputs"`, `(batch, length, units)`, `"constants"` and an
                optional `"memory"`.
            training: Boolean. Whether to sample dropout masks.
            mask: Optional Boolean tensor `(batch, length)`, false at padding.

        Returns:
            Nest of tensors.
        """
        inputs, memory = given["inputs"], given.get("memory")
        if memory is not None and self.normalize_first and "states" in memory:
            # Keys and values are already computed from normalized states.
            memory = {**memory, "states": self.attention_norm(memory["states"])}
        constants = given["constants"]
        nothing = ops.zeros_like(inputs[..., :1])  # The layer has no injection.
        attention = self.attention.prepare(
            nothing, memory, training, constants["attention"], mask
        )
        prepared = {**constants, "attention": attention}
        if training and self.dropout_rate > 0:
            prepared["masks"] = self._sample_masks(inputs)
        return prepared

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

    def call(self, state, prepared):
        masks = prepared.get("masks", {})
        first = self.normalize_first
        attended = self.attention_norm(state) if first else state
        attended = self.attention(attended, prepared["attention"])
        hidden = state + _masked(attended, masks.get("attention"))
        hidden = hidden if first else self.attention_norm(hidden)
        branch = self.branch_norm(hidden) if first else hidden
        branch = apply_dense(self.expansion, branch, prepared.get("expansion"))
        branch = _masked(ops.relu(branch), masks.get("expansion"))
        branch = apply_dense(self.contraction, branch, prepared.get("contraction"))
        branch = _masked(branch, masks.get("contraction"))
        outputs = hidden + branch
        return outputs if first else self.branch_norm(outputs)

    def keys_and_values(self, state, prepared):
        """See `TransformerCell.keys_and_values`; `state` is the input of the layer."""
        if self.normalize_first:
            state = self.attention_norm(state)
        return self.attention.keys_and_values(state, prepared["attention"])

    def compute_output_shape(self, state_shape, prepared_shape=None):
        del prepared_shape
        return state_shape

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
            "seed": self.seed,
        }
        return {**super().get_config(), **config}


def _masked(tensor, mask):
    return tensor if mask is None else tensor * mask
