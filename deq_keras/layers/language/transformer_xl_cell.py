"""The cell that continues the layers of a Transformer-XL."""

from typing import Any

import keras
from keras import ops

from deq_keras.layers.language.segment_memory import SegmentCell
from deq_keras.layers.language.transformer_xl_layer import TransformerXLLayer


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLCell(TransformerXLLayer, SegmentCell):
    """A layer of Transformer-XL whose equilibrium continues explicit layers.

    With the output h of the layers before,

    ```
    f(z, h) = layer(z + h)          z_0 = h
    ```

    so an equilibrium starts at h and refines it, as in Attractor Models, which start
    at the output of a Transformer. A `TransformerCell`, in contrast, adds its injection
    to queries, keys and values.

    Args:
        units: See `TransformerXLLayer`.
        num_heads: See `TransformerXLLayer`.
        intermediate_dim: See `TransformerXLLayer`.
        **kwargs: See `TransformerXLLayer`. `normalize_first` must be `False`:
            otherwise, f would contain z unchanged and barely contract.

    Call arguments:
        state: Tensor of shape `(batch, length, units)`.
        injection: Nest of tensors. Result of `inject` for this solve.

    Input shape:
        `(batch, length, units)` or a dict; see `inject`.

    Output shape:
        `(batch, length, units)`.

    Raises:
        ValueError: If an argument is out of range, or the last axis of the inputs is
            not `units`.

    Example:

    >>> cell = TransformerXLCell(units=16, num_heads=2, intermediate_dim=64)
    >>> equilibrium = deq_keras.layers.DEQ(cell)
    >>> tuple(equilibrium(keras.random.normal((2, 5, 16))).shape)
    (2, 5, 16)

    Reference:
        [Attractor Models, 2026](https://arxiv.org/abs/2605.12466): the start.
    """

    def __init__(
        self, units: int, num_heads: int, intermediate_dim: int, **kwargs: Any
    ) -> None:
        super().__init__(units, num_heads, intermediate_dim, **kwargs)
        if self.normalize_first:
            raise ValueError(
                "`normalize_first` must be False: with norms before the branches, f "
                "contains its state unchanged and barely contracts. Use False, or a "
                "TransformerCell. Received: normalize_first=True."
            )

    def build(self, inputs_shape: Any) -> None:
        if isinstance(inputs_shape, dict):
            inputs_shape = inputs_shape["inputs"]
        super().build(inputs_shape)

    def inject(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        """Keeps the inputs, and fixes memory, kernels and masks.

        Args:
            inputs: Tensor `(batch, length, units)`; or a dict with this tensor as
                `"inputs"`, the optional `"memory"` of previous positions and the
                optional `"constants"` of the cell, as for `TransformerCell`.
            training: Boolean. Whether to sample dropout masks.
            mask: Optional Boolean tensor `(batch, length)`, false at padding, which
                other positions ignore.

        Returns:
            Nest of tensors.
        """
        given = dict(inputs) if isinstance(inputs, dict) else {"inputs": inputs}
        if not self.built:
            self.build(tuple(given["inputs"].shape))
        given["inputs"] = ops.cast(given["inputs"], self.compute_dtype)
        given["constants"] = given.get("constants") or self._branch_kernels()
        return {**super().inject(given, training, mask), "inputs": given["inputs"]}

    def initial_state(self, injection: Any) -> Any:
        """Returns the inputs."""
        return injection["inputs"]

    def call(self, state: Any, injection: Any) -> Any:
        return super().call(state + injection["inputs"], injection)

    def keys_and_values(self, state: Any, injection: Any) -> tuple[Any, Any]:
        return super().keys_and_values(state + injection["inputs"], injection)

    @property
    def output_dim(self) -> int:
        return self.units

    @property
    def memory_sizes(self) -> dict[str, int]:
        return {"states": self.units, "injections": 1}

    def extract_memory(self, inputs: Any, state: Any) -> dict[str, Any]:
        return super().extract_memory(inputs, ops.add(state, inputs))

    def features(self, state: Any) -> Any:
        return state
