"""The layer of Transformer-XL."""

from typing import Any

import keras
from keras import ops

from deq_keras.layers.language.transformer_branches import TransformerBranches
from deq_keras.layers.normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLLayer(TransformerBranches):
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
        num_heads: See `TransformerCell`.
        intermediate_dim: See `TransformerCell`.
        normalize_first: Boolean. Whether the norms precede attention and branch
            (pre-LN) or follow them (post-LN). Defaults to `False`.
        local_size: See `TransformerCell`. Defaults to `None`.
        dropout_rate: See `TransformerCell`. Defaults to `0.0`.
        attention_dropout_rate: See `TransformerCell`. Defaults to `0.0`.
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
        units: int,
        num_heads: int,
        intermediate_dim: int,
        *,
        weight_normalization: bool = False,
        kernel_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units,
            num_heads,
            intermediate_dim,
            kernel_initializer or keras.initializers.RandomNormal(stddev=0.02),
            weight_normalization=weight_normalization,
            **kwargs,
        )
        self._create_branches(self.kernel_initializer)
        self.attention_norm, self.branch_norm = (
            LayerNormalization(name=f"{name}_norm", dtype=self.dtype_policy)
            for name in ("attention", "branch")
        )

    def build(self, inputs_shape: Any) -> None:
        if inputs_shape[-1] != self.units:
            raise ValueError(
                f"Layer '{self.name}' adds to its inputs, which must have the size of "
                f"its states, units={self.units}. Received: inputs of shape "
                f"{tuple(inputs_shape)}."
            )
        self._build_branches(inputs_shape)
        for norm in (self.attention_norm, self.branch_norm):
            norm.build(inputs_shape)

    def first_state(self, inputs: Any) -> Any:
        """Returns the inputs, the state that enters the first layer."""
        return inputs

    def extract_memory(self, inputs: Any, state: Any) -> dict[str, Any]:
        """Returns the memory of a layer, which consists of its previous inputs."""
        del inputs
        return {"states": state, "injections": ops.zeros_like(state[..., :1])}

    def inject(self, given: Any, training: bool = False, mask: Any = None) -> Any:
        """Fixes memory, kernels and masks, as `TransformerCell.inject` does.

        Args:
            given: Dict of `"inputs"`, `(batch, length, units)`, `"constants"` and an
                optional `"memory"`.
            training: Boolean. Whether to sample dropout masks.
            mask: Optional Boolean tensor `(batch, length)`, false at padding.

        Returns:
            Nest of tensors.
        """
        nothing = ops.zeros_like(given["inputs"][..., :1])  # In place of an injection.
        return self._prepare(given, nothing, given["constants"], training, mask)

    def _first_norm(self, state: Any) -> Any:
        return self.attention_norm(state)

    def call(self, state: Any, prepared: Any) -> Any:
        hidden = self._with_attention(state, prepared)
        if self.normalize_first:
            return hidden + self._branch(self.branch_norm(hidden), prepared)
        hidden = self.attention_norm(hidden)
        return self.branch_norm(hidden + self._branch(hidden, prepared))

    def compute_output_shape(self, state_shape: Any, prepared_shape: Any = None) -> Any:
        del prepared_shape
        return state_shape
