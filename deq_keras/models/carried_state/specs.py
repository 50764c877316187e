"""The shapes and dtypes of what is carried."""

import keras
import tensorflow as tf
from keras import tree

from deq_keras.layers import SolveScope


class ExampleSpecs:
    """The shapes and dtypes of the samples that a model is trained on.

    Args:
        examples: Nest of tensors, arrays or `tf.TensorSpec`s `(batch, ...)`: `(x, y)`
            or `(x, y, sample_weight)`.

    Attributes:
        specs: Tuple of nests of `tf.TensorSpec`s `(None, ...)`.
    """

    def __init__(self, examples):
        if not isinstance(examples, list | tuple) or len(examples) not in (2, 3):
            raise ValueError(
                "`examples` must be what `fit` gets, (x, y) or (x, y, sample_weight): "
                "arrays, tensors or `tf.TensorSpec`s, such as `dataset.element_spec`. "
                f"Received: examples={examples!r}."
            )
        self.specs = tuple(tree.map_structure(_given_spec, part) for part in examples)

    def with_batch_size(self, batch_size):
        """Returns the specs of a batch of one size."""
        return tree.map_structure(
            lambda spec: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype),
            self.specs,
        )

    def check(self, data):
        """Raises `ValueError` if what a step gets is of another kind.

        Args:
            data: Nest of tensors `(batch, ...)`.
        """
        received = tree.map_structure(_spec, data)
        # By paths: a tuple comes back from a file as a list.
        if tree.flatten_with_path(received) != tree.flatten_with_path(self.specs):
            raise ValueError(
                "What `fit` gets must be like `examples`. "
                f"Expected: {self.specs}. Received: {received}."
            )

    def get_config(self):
        """Returns the specs as Keras can read them again from a file."""
        tensors = tree.map_structure(
            lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), self.specs
        )
        return keras.saving.serialize_keras_object(tensors)


def state_specs(model, inputs):
    """Returns the nest of `tf.TensorSpec`s of the state of a model's equilibrium.

    Args:
        model: A built `keras.Model` that calls one equilibrium layer, once.
        inputs: Nest of `tf.TensorSpec`s `(batch, ...)` with static shapes.
    """
    if not getattr(model, "built", False):
        raise ValueError(
            "A state can be carried once the model is built: call it on a batch. "
            f"Received: model={model!r}."
        )

    def solve(inputs):
        with SolveScope() as scope:
            model(inputs, training=False)
        return {name: found.value for name, found in scope.solutions.items()}

    with tf.init_scope():
        traced = tf.function(solve, autograph=False).get_concrete_function(inputs)
    states = traced.structured_outputs
    if len(states) != 1:
        raise ValueError(
            "A state is carried by one equilibrium layer. Expected: a model that calls "
            f"one, once. Received: the model {model.name!r}, which solves "
            f"{list(states)}."
        )
    (state,) = states.values()
    return tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), state)


def _given_spec(leaf):
    spec = _spec(leaf)
    # Keras gives floats of arrays in its own precision, and those of datasets as is.
    if spec.dtype.is_floating and hasattr(leaf, "__array__"):
        return tf.TensorSpec(spec.shape, keras.config.floatx())
    return spec


def _spec(leaf):
    shape, dtype = tf.TensorShape(leaf.shape), tf.as_dtype(leaf.dtype)
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    if not is_number or not shape.rank or not shape[1:].is_fully_defined():
        raise ValueError(
            "Samples that are carried must be numbers, and have static shapes: all "
            "axes but the first, the batch. Received: "
            f"shape={shape}, dtype={dtype.name}."
        )
    return tf.TensorSpec([None, *shape[1:]], dtype)
