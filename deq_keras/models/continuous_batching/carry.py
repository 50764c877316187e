"""The samples of a continuous batch, their states, and their shapes and dtypes."""

import functools
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core.structure import Nest, where_rows, wide_dtype
from deq_keras.layers import SolveScope

# Larger than any number of segments.
_FIRST = 2**30


class Admitted(NamedTuple):
    """The samples of an update.

    Attributes:
        examples: Nest of tensors `(batch, ...)`.
        state: Nest of tensors `(batch, ...)`. Last states of the places in the batch.
        continues: Boolean tensor `(batch,)`, true for samples that start at that state:
            the remaining samples, and fresh samples that inherit it.
        replaced_segments: Float tensor `(fresh,)`. Number of segments of each replaced
            sample; NaN if the batch was empty.
        replaced_finished: Float tensor `(fresh,)`. One for each replaced sample that
            had finished, zero for others; NaN if the batch was empty.
    """

    examples: Any
    state: Nest
    continues: tf.Tensor
    replaced_segments: tf.Tensor
    replaced_finished: tf.Tensor


class Carry(keras.layers.Layer):
    """Holds a batch of samples, their states and their numbers of segments.

    All of them are non-trainable weights, which are saved and restored with the model.
    States are kept in float32 or better, which represents half precision exactly.

    Args:
        examples: Nest of `tf.TensorSpec`s `(batch, ...)` with static shapes.
        state: Nest of `tf.TensorSpec`s `(batch, ...)` with static shapes.
        **kwargs: `name` of the layer.
    """

    def __init__(self, examples: Nest, state: Nest, **kwargs: Any) -> None:
        super().__init__(trainable=False, **kwargs)
        self.batch_size = tree.flatten(state)[0].shape[0]
        # Keras would convert a nest to its own containers.
        self._as_state = functools.partial(tree.pack_sequence_as, state)

        def weight(shape: Any, dtype: Any, name: str) -> keras.Variable:
            dtype = keras.backend.standardize_dtype(dtype)
            return self.add_weight(shape, "zeros", dtype, trainable=False, name=name)

        self._examples = [
            weight(spec.shape, spec.dtype, f"example_{i}")
            for i, spec in enumerate(tree.flatten(examples))
        ]
        self._state = [
            weight(spec.shape, wide_dtype(spec.dtype), f"state_{i}")
            for i, spec in enumerate(tree.flatten(state))
        ]
        self._num_segments = weight([self.batch_size], "int32", "num_segments")
        self._is_finished = weight([self.batch_size], "int32", "is_finished")
        self.built = True

    @property
    def num_segments(self) -> tf.Tensor:
        """Int32 tensor `(batch,)`. 0 before the first update."""
        return tf.convert_to_tensor(self._num_segments)

    def reset(self) -> None:
        """Removes all samples."""
        self._num_segments.assign(tf.zeros_like(self.num_segments))

    def admit(self, fresh: Nest, inherits: tf.Tensor) -> Admitted:
        """Replaces samples by as many fresh ones.

        Finished samples are replaced first, then others, each in the order of their
        number of segments, largest first. An empty carry is filled by repetition.

        Args:
            fresh: Nest of tensors `(fresh, ...)`, fewer than the batch.
            inherits: Boolean tensor `(batch,)`, true for places where a fresh sample
                starts at the state of the sample that it replaces.

        Returns:
            The `Admitted` samples.
        """
        size = tree.flatten(fresh)[0].shape[0]
        num_fresh = tf.shape(tree.flatten(fresh)[0])[0]
        message = (
            "The batches that `fit` gets hold fresh samples, which take the places of "
            "as many others; they must be smaller than the running batch. Expected: "
            f"less than batch_size={self.batch_size}. Received: batches of "
        )
        if size is not None and size >= self.batch_size:
            raise ValueError(f"{message}{size}.")
        check = tf.debugging.Assert(num_fresh < self.batch_size, [message, num_fresh])
        with tf.control_dependencies([] if check is None else [check]):
            num_fresh = tf.identity(num_fresh)
        segments = self.num_segments
        is_finished = tf.convert_to_tensor(self._is_finished)
        # 1. Choose the places whose samples are replaced. `top_k` takes the first of
        #    equal values.
        _, leaving = tf.math.top_k(segments + _FIRST * is_finished, num_fresh)
        is_empty = tf.equal(tf.reduce_max(segments), 0)
        # 2. Give each place the index of its fresh sample, or -1 if its sample remains.
        places = tf.fill([self.batch_size], -1)
        arrived = tf.tensor_scatter_nd_update(
            places, leaving[:, None], tf.range(num_fresh)
        )
        repeated = tf.range(self.batch_size) % num_fresh
        source = tf.where(is_empty, repeated, arrived)
        is_fresh = source >= 0
        # 3. Replace the samples.
        examples = [
            where_rows(
                is_fresh,
                tf.gather(new, tf.maximum(source, 0)),
                tf.convert_to_tensor(old),
            )
            for new, old in zip(tree.flatten(fresh), self._examples, strict=True)
        ]
        for weight, leaf in zip(self._examples, examples, strict=True):
            weight.assign(leaf)
        self._num_segments.assign(tf.where(is_fresh, 0, segments))

        def take_replaced(values: tf.Tensor) -> tf.Tensor:
            values = tf.cast(tf.gather(values, leaving), tf.float32)
            return tf.where(is_empty, tf.constant(float("nan")), values)

        return Admitted(
            tree.pack_sequence_as(fresh, examples),
            self._as_state([tf.convert_to_tensor(weight) for weight in self._state]),
            ~is_fresh | (inherits & ~is_empty),
            take_replaced(segments),
            take_replaced(is_finished),
        )

    def store(self, state: Nest, is_finished: tf.Tensor) -> None:
        """Stores the results of an update.

        Args:
            state: Nest of tensors `(batch, ...)`.
            is_finished: Boolean tensor `(batch,)`.
        """
        for weight, leaf in zip(self._state, tree.flatten(state), strict=True):
            weight.assign(tf.cast(leaf, weight.dtype))
        self._num_segments.assign(self.num_segments + 1)
        self._is_finished.assign(tf.cast(is_finished, tf.int32))

    def load_own_variables(self, store: Any) -> None:
        # Keras tries several locations, and shows the error of the last one.
        if "0" not in store.keys() or store["0"].shape[0] != self.batch_size:
            raise ValueError(
                "The running batch cannot be restored: the file has none, or was "
                "saved with another `batch_size`. Create the model with the saved "
                f"model's `batch_size`. Received: batch_size={self.batch_size}."
            )
        super().load_own_variables(store)


class ExampleSpecs:
    """Shapes and dtypes of the training samples.

    Args:
        examples: Nest of tensors, arrays or `tf.TensorSpec`s `(batch, ...)`: `(x, y)`
            or `(x, y, sample_weight)`.

    Attributes:
        specs: Tuple of nests of `tf.TensorSpec`s `(None, ...)`.
    """

    def __init__(self, examples: Any) -> None:
        if not isinstance(examples, list | tuple) or len(examples) not in (2, 3):
            raise ValueError(
                "`examples` must be what `fit` gets, (x, y) or (x, y, sample_weight): "
                "arrays, tensors or `tf.TensorSpec`s, such as `dataset.element_spec`. "
                f"Received: examples={examples!r}."
            )
        self.specs = tuple(tree.map_structure(_given_spec, part) for part in examples)

    def with_batch_size(self, batch_size: int) -> Any:
        """Returns the specs with a static batch size."""
        return tree.map_structure(
            lambda spec: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype),
            self.specs,
        )

    def check(self, data: Any) -> None:
        """Raises `ValueError` if the data of a step have other shapes or dtypes.

        Args:
            data: Nest of tensors `(batch, ...)`.
        """
        received = tree.map_structure(_spec, data)
        # Compares paths, because loading turns a tuple into a list.
        if tree.flatten_with_path(received) != tree.flatten_with_path(self.specs):
            raise ValueError(
                "What `fit` gets must be like `examples`. "
                f"Expected: {self.specs}. Received: {received}."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the specs in a form that Keras can save and load."""
        tensors = tree.map_structure(
            lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), self.specs
        )
        return keras.saving.serialize_keras_object(tensors)


def state_specs(model: keras.Model, inputs: Nest) -> tuple[str, Nest]:
    """Returns the name of a model's equilibrium layer, and the nest of `tf.TensorSpec`s
    of its state.

    Args:
        model: A built `keras.Model` that calls one equilibrium layer, once.
        inputs: Nest of `tf.TensorSpec`s `(batch, ...)` with static shapes.
    """
    if not getattr(model, "built", False):
        raise ValueError(
            "A state can be carried once the model is built: call it on a batch. "
            f"Received: model={model!r}."
        )

    def solve(inputs: Nest) -> dict[str, Nest]:
        with SolveScope(model) as scope:
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
    ((name, state),) = states.items()
    specs = tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), state
    )
    return name, specs


def _given_spec(leaf: Any) -> tf.TensorSpec:
    spec = _spec(leaf)
    # Keras casts floats of arrays to its own precision, but not floats of datasets.
    if spec.dtype.is_floating and hasattr(leaf, "__array__"):
        return tf.TensorSpec(spec.shape, keras.config.floatx())
    return spec


def _spec(leaf: Any) -> tf.TensorSpec:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise ValueError(
            "`examples` must consist of arrays, tensors or `tf.TensorSpec`s with a "
            "batch axis. Convert lists with np.asarray, and strings to numbers. "
            f"Received: an element {leaf!r} of type {type(leaf).__name__}."
        )
    shape, dtype = tf.TensorShape(leaf.shape), tf.as_dtype(leaf.dtype)
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    if not is_number or not shape.rank or not shape[1:].is_fully_defined():
        raise ValueError(
            "Samples that are carried must be numbers, and have static shapes: all "
            "axes but the first, the batch. Received: "
            f"shape={shape}, dtype={dtype.name}."
        )
    return tf.TensorSpec([None, *shape[1:]], dtype)
