"""Variables of a layer that compiled functions read, but that are not weights."""

import math
from collections.abc import MutableMapping
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.core import replicas
from deq_keras.core.checks import check_fraction, check_non_negative
from deq_keras.core.graphs import innermost_function
from deq_keras.core.internals import is_compiled_by_xla
from deq_keras.core.linearization import Linearization
from deq_keras.core.nonfinite import floating
from deq_keras.core.structure import Nest
from deq_keras.regularizers import EquilibriumRegularizer

# Key of `save_own_variables`.
_FACTOR_KEY = "penalty_factor"


class Controls(tf.Module):
    """Creates scalar variables, and keeps them out of the weights of a layer.

    If they were attributes of the layer, Keras would save them, and a built layer could
    not add one. TensorFlow tracks those that a SavedModel reads.

    Args:
        like: Variable of the layer. The new ones have a copy on each of its replicas.
    """

    def __init__(self, like: keras.Variable) -> None:
        super().__init__()
        self._like = like
        self._read_by_files: list[tf.Variable] = []

    def create(
        self, name: str, value: float, dtype: str, is_read_by_files: bool = False
    ) -> keras.Variable:
        """Returns a new variable.

        Args:
            name: String.
            value: Number.
            dtype: String. TensorFlow keeps int32 variables in the memory of the host,
                where a function that XLA compiled for a GPU cannot read them.
            is_read_by_files: Boolean. Whether a SavedModel reads it.
        """
        with replicas.scope(self._like):
            variable = keras.Variable(
                keras.initializers.Constant(value),
                shape=(),
                dtype=dtype,
                trainable=False,
                autocast=False,
                aggregation="only_first_replica",
                name=name,
            )
        if is_read_by_files:
            self._read_by_files.append(variable.value)
        return variable


class TraceVersion:
    """Counts the replacements of a layer's components.

    A function that is traced holds the components of that time. It therefore compares
    the number of its trace with a variable, and fails after a replacement.

    Args:
        controls: The `Controls` of the layer.
    """

    def __init__(self, controls: Controls) -> None:
        self._variable = controls.create("version", 0, "int64", is_read_by_files=True)
        self._number = 0

    @property
    def number(self) -> int:
        """Number of replacements so far."""
        return self._number

    def increase(self) -> None:
        """After this call, functions fail that were traced before it."""
        self._number += 1
        with tf.init_scope():
            self._variable.assign(self._number)

    def check(
        self, name: str, inputs: Nest, is_in_file: bool
    ) -> tuple[Nest, tf.Tensor | None]:
        """Returns the inputs of a call, with a check if it is traced in a function.

        The function raises an error after a replacement. Under XLA nothing can raise,
        so there all inputs become NaN, and all samples fail. A mask of usable samples
        would slow plain steps of a batch by a third.

        Args:
            name: String. Name of the layer.
            inputs: Inputs of the layer, nest of `(batch, ...)` tensors.
            is_in_file: Boolean. Whether the function goes to a file, which keeps its
                components.

        Returns:
            The inputs, and a Boolean mask `(batch,)` of usable samples where integer
            inputs cannot be NaN, else `None`.
        """
        if is_in_file or innermost_function() is None:
            return inputs, None
        is_current = tf.equal(self._variable.value, self._number)
        if is_compiled_by_xla():
            leaves = [leaf for leaf in tree.flatten(inputs) if leaf is not None]
            if not floating(leaves):
                return inputs, tf.fill([tf.shape(leaves[0])[0]], is_current)
            return tree.map_structure(
                lambda leaf: (
                    tf.where(is_current, leaf, tf.constant(math.nan, leaf.dtype))
                    if leaf is not None and leaf.dtype.is_floating
                    else leaf
                ),
                inputs,
            ), None
        assertion = tf.debugging.Assert(
            is_current,
            [
                f"A component of the layer {name!r} was replaced after this function "
                "was compiled, such as its solver, gradient or regularizer. Compile "
                "the model again: model.compile(...); trace a tf.function of your own "
                "again."
            ],
        )
        with tf.control_dependencies([assertion]):
            return tree.map_structure(
                lambda leaf: None if leaf is None else tf.identity(leaf), inputs
            ), None


class PenaltyControls:
    """The factor of a layer's penalty, and the fraction of steps that add it.

    Args:
        controls: The `Controls` of the layer.
        trace_version: The `TraceVersion` of the layer.
    """

    def __init__(self, controls: Controls, trace_version: TraceVersion) -> None:
        self._controls = controls
        self._trace_version = trace_version
        self.factor = controls.create("penalty_factor", 1.0, "float32")
        self.probability: keras.Variable | None = None

    def loss(
        self,
        regularizer: EquilibriumRegularizer,
        linearization: Linearization,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the loss of a training step, a scalar in Keras' own precision.

        Args:
            regularizer: The `EquilibriumRegularizer` of the layer.
            linearization: The `Linearization` of the step.
            seed: Int32 tensor of shape `(2,)`.
        """
        if self.probability is not None:
            regularizer = regularizer.with_probability(self.probability.value)
        loss = regularizer(linearization, seed)
        loss *= tf.cast(self.factor.value, loss.dtype)
        # In a replica without samples, the mean over samples is 0 / 0.
        num_samples = tf.shape(tree.flatten(linearization.value)[0])[0]
        loss = tf.where(num_samples > 0, loss, tf.zeros_like(loss))
        # Keras adds losses in its own precision, regardless of the layer's.
        return tf.cast(loss, keras.config.floatx())

    def set_factor(self, factor: float) -> None:
        """Sets the factor from the next training step on."""
        self.factor.assign(check_non_negative("penalty_factor", factor))

    def set_probability(self, probability: float | None) -> None:
        """Sets the fraction; `None` for the `probability` of the regularizer.

        Functions fail that were traced for a fraction and now get `None`, or vice
        versa.
        """
        name, variable = "penalty_probability", self.probability
        if probability is not None:
            check_fraction(name, probability)
        if (probability is None) != (variable is None):
            self._trace_version.increase()
        if probability is None:
            self.probability = None
        elif variable is None:
            self.probability = self._controls.create(name, probability, "float32")
        else:
            variable.assign(probability)

    def save(self, store: MutableMapping[str, Any]) -> None:
        """Stores the factor beside the variables of the layer, if it is not 1."""
        factor = ops.convert_to_numpy(self.factor)
        if factor != 1.0:
            store[_FACTOR_KEY] = factor

    def load(self, store: MutableMapping[str, Any]) -> None:
        """Restores the factor, and removes it from the variables of the layer."""
        self.factor.assign(store.pop(_FACTOR_KEY, 1.0))
