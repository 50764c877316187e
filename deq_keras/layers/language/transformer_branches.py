"""The two branches of a Transformer layer with a memory."""

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
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.kernel_initializer import fresh
from deq_keras.layers.language.relative_attention import (
    RelativeAttention,
    make_dense,
    solve_kernels,
)
from deq_keras.layers.normalization.normalized_kernel import apply_kernel
from deq_keras.layers.variational_dropout import VariationalDropout


class TransformerBranches(CompositeLayer):
    """Base class of `TransformerCell` and `TransformerXLLayer`.

    Both add a relative attention and then two dense layers to their state. The
    subclasses create norms, and apply them.
    """

    # `noise_shape` of the dropout. `None`: masks differ between positions.
    noise_shape: tuple[int | None, ...] | None = None

    def __init__(
        self,
        units: int,
        num_heads: int,
        intermediate_dim: int,
        kernel_initializer: Any,
        normalize_first: bool = False,
        local_size: int | None = None,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        weight_normalization: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
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
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = check_seed("seed", seed)

    def _create_branches(self, bias_initializer: Any) -> None:
        self.attention = RelativeAttention(
            self.num_heads,
            local_size=self.local_size,
            dropout_rate=self.attention_dropout_rate,
            position_dropout_rate=self.dropout_rate,
            weight_normalization=self.weight_normalization,
            kernel_initializer=fresh(self.kernel_initializer),
            bias_initializer=fresh(bias_initializer),
            # The attention uses this seed and the next one, the dropout `self.seed`.
            seed=None if self.seed is None else self.seed + 1,
            name="attention",
            dtype=self.dtype_policy,
        )
        self.expansion = make_dense(self, self.intermediate_dim, "expansion")
        self.contraction = make_dense(self, self.units, "contraction")
        self.dropout = VariationalDropout(
            self.dropout_rate,
            noise_shape=self.noise_shape,
            seed=self.seed,
            name="dropout",
            dtype=self.dtype_policy,
        )

    def _build_branches(self, state_shape: Any) -> None:
        for layer in (self.attention, self.expansion):
            layer.build(state_shape)
        self.contraction.build((*state_shape[:-1], self.intermediate_dim))

    def constants(self, num_keys: Any, training: bool = False) -> dict[str, Any]:
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

    def _branch_kernels(self) -> Any:
        return solve_kernels(expansion=self.expansion, contraction=self.contraction)

    def _prepare(
        self, given: Any, injection: Any, constants: Any, training: bool, mask: Any
    ) -> Any:
        """Returns the constants that the branches use in each evaluation."""
        memory = given.get("memory")
        if memory is not None and self.normalize_first and "states" in memory:
            # Keys and values are already computed from normalized states.
            memory = {**memory, "states": self._first_norm(memory["states"])}
        attention = self.attention.prepare(
            injection, memory, training, constants.get("attention"), mask
        )
        prepared = {**constants, "attention": attention}
        if training and self.dropout_rate > 0:
            batch, length = ops.shape(given["inputs"])[:2]
            sizes = {
                "attention": self.units,
                "expansion": self.intermediate_dim,
                "contraction": self.units,
            }
            prepared["masks"] = {
                name: self.dropout.sample_mask((batch, length, size), training=True)
                for name, size in sizes.items()
            }
        return prepared

    def _first_norm(self, state: Any) -> Any:
        """Returns the input of the attention with `normalize_first`."""
        raise NotImplementedError

    def _with_attention(self, state: Any, prepared: Any) -> Any:
        attended = self._first_norm(state) if self.normalize_first else state
        attended = self.attention(attended, prepared["attention"])
        return state + _apply_mask(attended, prepared, "attention")

    def _branch(self, hidden: Any, prepared: Any) -> Any:
        """Returns the result of the two dense layers."""
        branch = apply_kernel(self.expansion, hidden, prepared.get("expansion"))
        branch = _apply_mask(ops.relu(branch), prepared, "expansion")
        branch = apply_kernel(self.contraction, branch, prepared.get("contraction"))
        return _apply_mask(branch, prepared, "contraction")

    def keys_and_values(self, state: Any, injection: Any) -> tuple[Any, Any]:
        """Returns keys and values of a state, for the memory.

        Args:
            state: Tensor `(batch, length, units)`. The equilibrium of a cell, or the
                input of an explicit layer.
            injection: Result of `inject` for the solve.

        Returns:
            Two tensors `(batch, num_heads, length, head_dim)`.
        """
        state = self._first_norm(state) if self.normalize_first else state
        return self.attention.keys_and_values(state, injection["attention"])

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, TransformerBranches)}


def _apply_mask(tensor: Any, prepared: Any, name: str) -> Any:
    mask = prepared.get("masks", {}).get(name)
    return tensor if mask is None else tensor * mask
