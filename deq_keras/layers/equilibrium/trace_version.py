"""Failure of functions that compute with a component that was replaced."""

from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.graphs import innermost_function, is_compiled_by_xla
from deq_keras.core.structure import Nest


class TraceVersion:
    """Counts the replacements of a layer's components.

    A function that is traced holds the components of that time. It therefore compares
    the number of its trace with a variable, and fails after a replacement.

    Args:
        variable: Int64 `keras.Variable` of the layer.
    """

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self._number = 0

    def increase(self) -> None:
        """After this call, functions fail that were traced before it."""
        self._number += 1
        with tf.init_scope():
            self.variable.assign(self._number)

    def usable(
        self, name: str, is_usable: tf.Tensor | None, inputs: Nest
    ) -> tf.Tensor | None:
        """Returns a mask of usable samples, for a function that is being traced.

        The function raises an error after a replacement. Under XLA nothing can raise,
        so there all samples fail.

        Args:
            name: String. Name of the layer.
            is_usable: See `FixedPointProblem`.
            inputs: Inputs of the layer, nest of `(batch, ...)` tensors.
        """
        if innermost_function() is None:
            return is_usable
        is_current = tf.equal(self.variable.value, self._number)
        if is_compiled_by_xla():
            if is_usable is None:
                leaf = next(leaf for leaf in tree.flatten(inputs) if leaf is not None)
                is_usable = tf.fill([tf.shape(leaf)[0]], True)
            return is_current & is_usable
        assertion = tf.debugging.Assert(
            is_current,
            [
                f"A component of the layer {name!r} was replaced after this function "
                "was compiled, such as its solver, gradient or regularizer. Compile "
                "the model again: model.compile(...); trace a tf.function of your own "
                "again."
            ],
        )
        if is_usable is None:
            return None
        with tf.control_dependencies([assertion]):
            return tf.identity(is_usable)
