"""What an equilibrium layer knows of its inputs: their dtypes and masks."""

from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest, named_leaves
from deq_keras.layers.equilibrium.cell_problem import masks_of_leaves


class KnowsInputs:
    """Mixin of `DEQ`: remembers which inputs are not floating-point; passes on masks.

    Keras passes only shapes to `build`, where `DEQ` traces its cell. A cell that uses
    an input as indices cannot be traced with floating-point numbers.
    """

    cell: Any
    built: bool
    # An entry is `None` for a floating-point input. Without a call, none are known.
    _input_dtypes: tuple[str | None, ...] = ()
    # The ranks of the leaves of the state.
    _ranks: tuple[int, ...] = ()

    def __call__(self, inputs: Nest, *args: Any, **kwargs: Any) -> Any:
        for name, leaf in named_leaves(inputs, "inputs"):
            if leaf is None:
                raise ValueError(
                    "The inputs of a DEQ layer must be tensors. Leave out inputs that "
                    f"are not used. Received: {name}=None."
                )
            if _is_sparse_or_ragged(leaf):
                raise ValueError(
                    "The inputs of a DEQ layer must be dense tensors. Convert sparse "
                    "ones with `tf.sparse.to_dense`, and ragged ones with "
                    f"`to_tensor`. Received: {name}={leaf!r}."
                )
        if not self.built:
            self._input_dtypes = tuple(map(_other_dtype, tree.flatten(inputs)))
        return super().__call__(inputs, *args, **kwargs)  # type: ignore[misc]

    def compute_mask(self, inputs: Nest, previous_mask: Nest) -> list[Any]:
        """Returns the mask of each leaf of the output, `None` without positions."""
        del inputs
        return masks_of_leaves(previous_mask, self._ranks)

    def get_build_config(self) -> Config | None:
        config = super().get_build_config()  # type: ignore[misc]
        if config is None or not any(self._input_dtypes):
            return config
        return {**config, "input_dtypes": list(self._input_dtypes)}

    def build_from_config(self, config: Config | None) -> None:
        self._input_dtypes = tuple((config or {}).get("input_dtypes", ()))
        super().build_from_config(config)  # type: ignore[misc]

    def _input_specs(self, inputs_shape: Nest) -> Nest:
        """Returns a nest of `tf.TensorSpec` for a nest of shapes."""
        dtypes = iter(self._input_dtypes)
        return tree.map_shape_structure(
            lambda shape: tf.TensorSpec(
                shape, next(dtypes, None) or self.cell.compute_dtype
            ),
            inputs_shape,
        )


def _other_dtype(leaf: Any) -> str | None:
    """Returns the name of a dtype that is not floating-point, else `None`."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or tf.as_dtype(dtype).is_floating:
        return None
    return tf.as_dtype(dtype).name


def _is_sparse_or_ragged(leaf: Any) -> bool:
    if isinstance(leaf, keras.KerasTensor):
        return leaf.sparse or leaf.ragged
    return isinstance(leaf, tf.SparseTensor | tf.RaggedTensor)
