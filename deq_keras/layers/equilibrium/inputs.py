"""The inputs of a layer: which it accepts, and their specs."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core.structure import Nest, named_leaves

# Inputs that may lack dense values.
INDIRECT = (tf.SparseTensor, tf.RaggedTensor, keras.KerasTensor)


def check_inputs(inputs: Nest) -> None:
    """Raises `ValueError` if an input is not a dense tensor, or if all are `None`."""
    if all(leaf is None for leaf in tree.flatten(inputs)):
        raise ValueError(
            "The inputs of a DEQ layer must contain a tensor. Only some of several "
            f"inputs can be absent. Received: inputs={inputs}."
        )
    for name, leaf in named_leaves(inputs, "inputs"):
        # The attribute `sparse` of a symbolic tensor says nothing about its values:
        # Keras 3.15 sets it for products with a number.
        if isinstance(leaf, tf.SparseTensor | tf.RaggedTensor) or (
            isinstance(leaf, keras.KerasTensor) and leaf.ragged
        ):
            raise ValueError(
                "The inputs of a DEQ layer must be dense tensors. Convert sparse ones "
                "with `tf.sparse.to_dense`, and ragged ones with `to_tensor`. "
                f"Received: {name}={leaf!r}."
            )


def dense_specs(nest: Nest) -> Nest:
    """Returns a nest in which no symbolic tensor is marked as sparse."""

    def dense(leaf: Any) -> Any:
        if isinstance(leaf, keras.KerasTensor) and leaf.sparse:
            return keras.KerasTensor(leaf.shape, leaf.dtype)
        return leaf

    return tree.map_structure(dense, nest)


class InputDtypes:
    """Remembers the dtypes of inputs, because Keras passes only shapes to `build`.

    A cell that uses an input as indices is traced there.

    Attributes:
        names: List of the names of dtypes that are not floating-point, with `None` for
            other inputs.
    """

    def __init__(self) -> None:
        self.names: list[str | None] = []

    def read(self, leaves: Sequence[Any]) -> None:
        """Remembers the dtypes of tensors, some of which can be `None`."""
        self.names = []
        for leaf in leaves:
            dtype = getattr(leaf, "dtype", None)
            is_other = dtype is not None and not tf.as_dtype(dtype).is_floating
            self.names.append(tf.as_dtype(dtype).name if is_other else None)

    def specs(self, shapes: Nest, dtype: str) -> Nest:
        """Returns a nest of `tf.TensorSpec` for a nest of shapes, `None` for `None`.

        Args:
            shapes: Nest of tuples.
            dtype: String. Dtype of floating-point inputs.
        """
        names = iter(self.names)

        def spec(shape: Any) -> tf.TensorSpec | None:
            name = next(names, None) or dtype
            return None if shape is None else tf.TensorSpec(shape, name)

        return tree.map_shape_structure(spec, shapes)
