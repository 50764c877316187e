"""The samples that are searched at the moment, and how far each has come."""

import functools
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras.structure import where_rows

# More than any number of segments.
_FIRST = 2**30


class Admitted(NamedTuple):
    """The samples of an update.

    Attributes:
        examples: Nest of tensors `(batch, ...)`.
        state: Nest of tensors `(batch, ...)`: the states that were reached.
        goes_on: Boolean tensor `(batch,)`. Which samples begin at that state: those
            that were there before, and those that inherit it.
        left_after: Float tensor `(fresh,)`. The segments of each sample that left.
        left_finished: Float tensor `(fresh,)`. One for those of them that had finished,
            zero for others. Both are NaN where none was there to leave.
    """

    examples: tuple
    state: object
    goes_on: tf.Tensor
    left_after: tf.Tensor
    left_finished: tf.Tensor


class Carry(keras.layers.Layer):
    """Holds a batch of samples, their states and their numbers of segments.

    All of it are weights that are not trained, so that they are saved and restored with
    those of a model. States are kept in float32 or better, which holds every half
    precision exactly.

    Args:
        examples: Nest of `tf.TensorSpec`s `(batch, ...)` with static shapes.
        state: Nest of `tf.TensorSpec`s `(batch, ...)` with static shapes.
        **kwargs: `name` of the layer.
    """

    def __init__(self, examples, state, **kwargs):
        super().__init__(trainable=False, **kwargs)
        self.batch_size = tree.flatten(state)[0].shape[0]
        # A nest would become Keras' own containers.
        self._as_state = functools.partial(tree.pack_sequence_as, state)
        self._examples = self._weights_like(examples, "example")
        self._state = self._weights_like(tree.map_structure(_kept, state), "state")
        counts = tf.TensorSpec([self.batch_size], tf.int32)
        self._num_segments = self._weight_like(counts, "num_segments")
        self._is_finished = self._weight_like(counts, "is_finished")
        self.built = True

    @property
    def num_segments(self):
        """Int32 tensor `(batch,)`. 0 before the first update."""
        return _value(self._num_segments)

    def reset(self):
        """Forgets all samples."""
        self._num_segments.assign(tf.zeros_like(self.num_segments))

    def admit(self, fresh, inherits):
        """Puts fresh samples in the places of as many others.

        Those that finished leave first, and of these, and of others after them, those
        that have had the most segments. An empty carry is filled by repetition.

        Args:
            fresh: Nest of tensors `(fresh, ...)`, fewer than the batch.
            inherits: Boolean tensor `(batch,)`. In which places a fresh sample begins
                at the state of the one before it.

        Returns:
            The `Admitted` samples.
        """
        num_fresh = self._checked_size(fresh)
        segments, is_finished = self.num_segments, _value(self._is_finished)
        # Of equal ones, the first.
        _, leaving = tf.math.top_k(segments + _FIRST * is_finished, num_fresh)
        is_empty = tf.equal(tf.reduce_max(segments), 0)
        source = self._sources(leaving, num_fresh, is_empty)
        is_fresh = source >= 0
        examples = [
            where_rows(is_fresh, tf.gather(new, tf.maximum(source, 0)), _value(old))
            for new, old in zip(tree.flatten(fresh), self._examples, strict=True)
        ]
        for weight, leaf in zip(self._examples, examples, strict=True):
            weight.assign(leaf)
        self._num_segments.assign(tf.where(is_fresh, 0, segments))

        def left(values):
            values = tf.cast(tf.gather(values, leaving), tf.float32)
            return tf.where(is_empty, tf.constant(float("nan")), values)

        return Admitted(
            tree.pack_sequence_as(fresh, examples),
            self._as_state([_value(weight) for weight in self._state]),
            ~is_fresh | (inherits & ~is_empty),
            left(segments),
            left(is_finished),
        )

    def store(self, state, is_finished):
        """Keeps what an update reached.

        Args:
            state: Nest of tensors `(batch, ...)`.
            is_finished: Boolean tensor `(batch,)`.
        """
        for weight, leaf in zip(self._state, tree.flatten(state), strict=True):
            weight.assign(tf.cast(leaf, weight.dtype))
        self._num_segments.assign(self.num_segments + 1)
        self._is_finished.assign(tf.cast(is_finished, tf.int32))

    def load_own_variables(self, store):
        # Keras looks in several places, and shows what the last of them had to say.
        if "0" not in store.keys() or store["0"].shape[0] != self.batch_size:
            raise ValueError(
                "The samples in search cannot be restored: the file has none, or as "
                "many as another `batch_size`. Make the model with that of the one "
                f"that was saved. Received: batch_size={self.batch_size}."
            )
        super().load_own_variables(store)

    def _checked_size(self, fresh):
        """Returns how many samples are fresh: fewer than the batch in search."""
        first = tree.flatten(fresh)[0]
        message = (
            "The batches that `fit` gets hold fresh samples, which take the places of "
            "as many others; they must be smaller than the batch in search. Expected: "
            f"less than batch_size={self.batch_size}. Received: batches of "
        )
        if first.shape[0] is not None and first.shape[0] >= self.batch_size:
            raise ValueError(f"{message}{first.shape[0]}.")
        num_fresh = tf.shape(first)[0]
        check = tf.debugging.Assert(num_fresh < self.batch_size, [message, num_fresh])
        with tf.control_dependencies([check] if check is not None else []):
            return tf.identity(num_fresh)

    def _sources(self, leaving, num_fresh, is_empty):
        """Returns which fresh sample takes each place, an int32 tensor `(batch,)`; -1
        where none does."""
        places = tf.fill([self.batch_size], -1)
        arrived = tf.tensor_scatter_nd_update(
            places, leaving[:, None], tf.range(num_fresh)
        )
        return tf.where(is_empty, tf.range(self.batch_size) % num_fresh, arrived)

    def _weights_like(self, specs, name):
        return [
            self._weight_like(spec, f"{name}_{i}")
            for i, spec in enumerate(tree.flatten(specs))
        ]

    def _weight_like(self, spec, name):
        dtype = keras.backend.standardize_dtype(spec.dtype)
        return self.add_weight(spec.shape, "zeros", dtype, trainable=False, name=name)


def _kept(spec):
    """The dtype of a state that is kept."""
    dtype = tf.float64 if spec.dtype == tf.float64 else tf.float32
    return tf.TensorSpec(spec.shape, dtype)


def _value(weight):
    return tf.convert_to_tensor(weight)
