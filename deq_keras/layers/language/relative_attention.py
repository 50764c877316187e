"""Self-attention with relative positions and a memory."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_optional_count,
    check_rate,
    check_seed,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.kernel_initializer import fresh
from deq_keras.layers.language.attend import attend
from deq_keras.layers.normalization import WeightNormalizedDense
from deq_keras.layers.normalization.normalized_kernel import apply_kernel
from deq_keras.layers.variational_dropout import VariationalDropout


@keras.saving.register_keras_serializable(package="deq_keras")
class RelativeAttention(CompositeLayer):
    """Causal multi-head self-attention with relative positions and a memory.

    This is the attention of Transformer-XL (Dai et al., 2019), split for use in an
    equilibrium cell: `prepare` computes all tensors that do not depend on the state,
    once per solve, and `call` the rest. With queries q, keys k and values v of the
    states z, an injection u, and M positions of memory in front of the sequence,

    ```
    q, k, v     = split(z W + u)
    score[i, j] = ((q_i + content_bias) . k_j + (q_i + position_bias) . r_(i + M - j))
                  / sqrt(head_dim)
    outputs     = (softmax(score) v) W_o + b_o
    ```

    where r_d is a projection of the sinusoid of the distance d. A position sees
    itself and all positions before it.

    Args:
        num_heads: Positive integer. Number of attention heads. Must divide the size of
            the states.
        local_size: Positive integer or `None`. Number of positions that a query
            sees, including its own. Defaults to `None`, all positions.
        dropout_rate: Float in `[0, 1)`. Rate at which attention weights are dropped.
            All evaluations of a solve share the mask. Defaults to `0.0`.
        position_dropout_rate: Float in `[0, 1)`. Rate at which channels of the
            sinusoids are dropped. Defaults to `0.0`.
        weight_normalization: Boolean. Whether the three kernels are weight
            normalized. Defaults to `True`.
        kernel_initializer: Initializer of the kernels. Defaults to
            `"glorot_uniform"`.
        bias_initializer: Initializer of `content_bias` and `position_bias`. Defaults
            to `"zeros"`.
        seed: Integer. Seed of the dropout. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, length, units)`.
        prepared: Dict. Result of `prepare` for this solve.

    Input shape:
        `(batch, length, units)`.

    Output shape:
        Same as the input shape.

    Raises:
        ValueError: If an argument is out of range, or `num_heads` does not divide the
            size of the states.

    Example:

    >>> attention = RelativeAttention(num_heads=2)
    >>> inputs = keras.random.normal((3, 5, 8))
    >>> attention.build(inputs.shape)
    >>> prepared = attention.prepare(keras.ops.zeros((3, 5, 24)))
    >>> tuple(attention(inputs, prepared).shape)
    (3, 5, 8)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860).
    """

    def __init__(
        self,
        num_heads: int,
        local_size: int | None = None,
        dropout_rate: float = 0.0,
        position_dropout_rate: float = 0.0,
        weight_normalization: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_count("num_heads", num_heads)
        self.local_size = check_optional_count("local_size", local_size)
        self.weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = check_seed("seed", seed)
        self.dropout_rate = check_rate("dropout_rate", dropout_rate)
        self.position_dropout_rate = check_rate(
            "position_dropout_rate", position_dropout_rate
        )
        self.dropout = VariationalDropout(
            self.dropout_rate,
            seed=self.seed,
            name="dropout",
            dtype=self.dtype_policy,
        )
        self.position_dropout = VariationalDropout(
            self.position_dropout_rate,
            noise_shape=(1, None),
            # Uses another seed: the same one would draw the same numbers.
            seed=None if self.seed is None else self.seed + 1,
            name="position_dropout",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
        units = input_shape[-1]
        if units is None or units % self.num_heads or units % 2:
            raise ValueError(
                f"Layer '{self.name}' needs an even static size of its states, a "
                f"multiple of `num_heads`. Received: num_heads={self.num_heads}, "
                f"states of shape {tuple(input_shape)}"
            )
        self.units = units
        self.head_dim = units // self.num_heads
        self.query_key_value = make_dense(self, 3 * units, "query_key_value", False)
        self.position_projection = make_dense(self, units, "position_projection", False)
        self.output_projection = make_dense(self, units, "output_projection")
        for layer in (
            self.query_key_value,
            self.position_projection,
            self.output_projection,
        ):
            layer.build((None, units))
        self.content_bias = self._add_bias("content_bias")
        self.position_bias = self._add_bias("position_bias")

    def _add_bias(self, name: str) -> Any:
        return self.add_weight(
            name=name,
            shape=(self.num_heads, self.head_dim),
            initializer=self.bias_initializer,
        )

    def constants(self, num_keys: Any, training: bool = False) -> dict[str, Any]:
        """Computes the tensors that depend on neither inputs nor state.

        Args:
            num_keys: Integer or scalar tensor. Number of positions of the memory and
                the sequence together.
            training: Boolean. Whether to drop channels of the sinusoids.

        Returns:
            Dict of tensors.
        """
        return {
            "positions": self._positions(num_keys, training),
            **solve_kernels(
                query_key_value=self.query_key_value,
                output_projection=self.output_projection,
            ),
        }

    def prepare(
        self,
        injection: Any,
        memory: Any = None,
        training: bool = False,
        constants: Any = None,
        mask: Any = None,
    ) -> dict[str, Any]:
        """Computes the tensors that are constant during a solve.

        Args:
            injection: Tensor `(batch, length, 3 * units)`, added to the queries, keys
                and values of the sequence; or `(batch, length, 1)`, the same for all.
            memory: Optional dict of the positions before the sequence, oldest first:
                either `"states"`, `(batch, memory_length, units)`, and
                `"injections"`, `(batch, memory_length, 3 * units)`; or the
                `"keys"` and `"values"` that `keys_and_values` returned. It may also
                have a `"mask"`, Boolean `(batch, memory_length)`, true at valid
                positions.
            training: Boolean. Whether to sample dropout masks.
            constants: Optional dict. Result of `constants`, to reuse in many solves.
            mask: Optional Boolean tensor `(batch, length)`, false at padding.

        Returns:
            Dict of tensors.
        """
        shape = ops.shape(injection)
        length, memory_length, memory_mask = shape[1], 0, None
        if memory is not None:
            first = memory["keys"] if "keys" in memory else memory["states"]
            memory_length = ops.shape(first)[-2]
            memory_mask = memory.get("mask")
        num_keys = memory_length + length
        prepared = dict(constants or self.constants(num_keys, training))
        prepared["injection"] = injection
        prepared["mask"] = self._mask(length, memory_length, memory_mask, mask)
        if memory is not None:
            keys, values = memory.get("keys"), memory.get("values")
            if keys is None:
                _, keys, values = self._project(
                    memory["states"],
                    prepared.get("query_key_value"),
                    memory["injections"],
                )
            prepared["memory_keys"], prepared["memory_values"] = keys, values
        if training and self.dropout.rate > 0:
            prepared["dropout"] = self.dropout.sample_mask(
                (shape[0], self.num_heads, length, num_keys), training
            )
        return prepared

    def keys_and_values(self, inputs: Any, prepared: Any) -> tuple[Any, Any]:
        """Returns the keys and values of states, for the memory.

        Args:
            inputs: Tensor `(batch, length, units)`.
            prepared: Dict. Result of `prepare` for this solve.

        Returns:
            Two tensors `(batch, num_heads, length, head_dim)`.
        """
        _, keys, values = self._project(
            inputs, prepared.get("query_key_value"), prepared["injection"]
        )
        return keys, values

    def _project(self, states: Any, kernel: Any, injection: Any) -> Any:
        batch_size, length = ops.shape(states)[:2]
        projected = apply_kernel(self.query_key_value, states, kernel)
        heads = ops.reshape(
            projected + injection,
            (batch_size, length, 3, self.num_heads, self.head_dim),
        )  # (B, L, 3, H, head_dim)
        heads = ops.transpose(heads, (2, 0, 3, 1, 4))  # (3, B, H, L, head_dim)
        return heads[0], heads[1], heads[2]

    def _positions(self, length: Any, training: bool) -> Any:
        """Projects the sinusoids of the distances `length - 1` to 0."""
        # In half precision, neighboring large distances would round to the same number.
        dtype = wide_dtype(self.compute_dtype)
        distances = ops.cast(ops.arange(length - 1, -1, -1), dtype)
        exponents = ops.arange(0, self.units, 2, dtype=dtype) / self.units
        angles = ops.expand_dims(distances, 1) * ops.power(
            ops.cast(10000, dtype), -exponents
        )  # (K, units / 2)
        sinusoids = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
        sinusoids = ops.cast(sinusoids, self.compute_dtype)
        if training and self.position_dropout.rate > 0:
            sinusoids = sinusoids * self.position_dropout.sample_mask(sinusoids, True)
        positions = ops.reshape(
            self.position_projection(sinusoids), (-1, self.num_heads, self.head_dim)
        )  # (K, H, head_dim)
        positions = ops.transpose(positions, (1, 2, 0))  # (H, head_dim, K)
        # Adds a column that no query sees, for the shift in `attend`.
        return ops.pad(positions, ((0, 0), (0, 0), (1, 0)))

    def _mask(
        self, length: Any, memory_length: Any, memory_mask: Any, own_mask: Any
    ) -> Any:
        """Returns the mask to add to the scores: 0, or -3e4 at masked positions."""
        queries = ops.expand_dims(ops.arange(length) + memory_length, 1)
        distances = queries - ops.arange(memory_length + length)  # (L, K)
        is_seen = distances >= 0
        if self.local_size is not None:
            is_seen = ops.logical_and(is_seen, distances < self.local_size)
        is_seen = ops.expand_dims(is_seen, (0, 1))  # (1, 1, L, K)
        given = memory_mask if own_mask is None else own_mask
        if given is not None:
            is_filled = ops.concatenate(
                [
                    _or_all(memory_mask, given, memory_length),
                    _or_all(own_mask, given, length),
                ],
                axis=1,
            )  # (B, K)
            is_filled = ops.expand_dims(is_filled, (1, 2))  # (B, 1, 1, K)
            is_seen = ops.logical_and(is_seen, is_filled)
        # Float16 is finite up to 65504, and exp(-3e4) is 0 in every dtype.
        return ops.where(
            is_seen,
            ops.cast(0, self.compute_dtype),
            ops.cast(-3e4, self.compute_dtype),
        )

    def call(self, inputs: Any, prepared: Any) -> Any:
        queries, keys, values = self._project(
            inputs, prepared.get("query_key_value"), prepared["injection"]
        )
        if "memory_keys" in prepared:
            keys = ops.concatenate([prepared["memory_keys"], keys], axis=2)
            values = ops.concatenate([prepared["memory_values"], values], axis=2)
        scale = self.head_dim**-0.5
        mixed = attend(
            (queries + self.content_bias[:, None]) * scale,
            (queries + self.position_bias[:, None]) * scale,
            keys,
            prepared["positions"],
            values,
            prepared["mask"],
            prepared.get("dropout"),
        )
        mixed = ops.transpose(mixed, (0, 2, 1, 3))
        mixed = ops.reshape(mixed, ops.shape(inputs))  # (B, L, units)
        kernel = prepared.get("output_projection")
        return apply_kernel(self.output_projection, mixed, kernel)

    def compute_output_shape(
        self, inputs_shape: Any, prepared_shape: Any = None
    ) -> Any:
        del prepared_shape
        return inputs_shape

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, RelativeAttention)}


def _or_all(mask: Any, other: Any, length: Any) -> Any:
    """Returns `mask`, or by default `length` true positions per sample of `other`."""
    if mask is not None:
        return ops.cast(mask, "bool")
    return ops.ones((ops.shape(other)[0], length), "bool")


def make_dense(
    layer: keras.layers.Layer, units: int, name: str, use_bias: bool = True
) -> keras.layers.Layer:
    """Returns a dense layer with the arguments of the layer that creates it."""
    cls = WeightNormalizedDense if layer.weight_normalization else keras.layers.Dense
    return cls(
        units,
        use_bias=use_bias,
        kernel_initializer=fresh(layer.kernel_initializer),
        name=name,
        dtype=layer.dtype_policy,
    )


def solve_kernels(**layers: Any) -> dict[str, Any]:
    """Returns a dict of the kernels to compute once per solve, by name.

    It contains only weight-normalized layers. Other layers apply their own kernel,
    which may be quantized or have a LoRA update.
    """
    return {
        name: layer.normalized_kernel()
        for name, layer in layers.items()
        if isinstance(layer, WeightNormalizedDense)
    }
