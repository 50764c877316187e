"""Random numbers as functions of a seed, and the random state of a layer.

`fold_in`, `uniform`, `integer` and `normal` draw the same numbers with and without XLA.
TensorFlow's own functions draw other numbers if XLA compiles them.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_seed
from deq_keras.core.internals import is_compiled_by_xla
from deq_keras.core.structure import Nest

_KEY = "seed_generator_state"
# TensorFlow scrambles a seed with this key.
_SCRAMBLING_KEY = 0x02461E293EC8F720
_PHILOX = 1  # TensorFlow's number of the algorithm.


def as_seed(seed: Any) -> tf.Tensor | None:
    """Returns a seed as an int32 tensor of shape `(2,)`, or `None`.

    Args:
        seed: Integer, int32 tensor of shape `(2,)`, or `None`.
    """
    if seed is None:
        return None
    if tf.is_tensor(seed):
        if not (seed.dtype.is_integer and seed.shape.is_compatible_with((2,))):
            raise ValueError(
                "`seed` must be an integer, or an int32 tensor of shape (2,). "
                f"Received: a tensor of shape {seed.shape} and dtype {seed.dtype.name}."
            )
        return seed
    return tf.constant([check_seed("seed", seed), 0])


def next_seed(generator: keras.random.SeedGenerator) -> tf.Tensor:
    """Returns the next seed of a generator, the one that `keras.random` would use."""
    return tf.cast(tf.math.floormod(generator.next(), tf.int32.max - 1), tf.int32)


def fold_in(seed: Any, number: int | tf.Tensor) -> Any:
    """Returns a new seed, a function of a seed and a number; `None` for `None`."""
    if seed is None:
        return None
    if not is_compiled_by_xla():
        return tf.random.fold_in(seed, number)
    return tf.stack([_integers([], seed, tf.int32), number])


def split(seed: Any, count: int) -> list[Any]:
    """Returns `fold_in(seed, i)` for i from 0 to `count - 1`, which share a draw."""
    if seed is None:
        return [None] * count
    draw, _ = tf.unstack(fold_in(seed, 0))
    return [tf.stack([draw, i]) for i in range(count)]


def uniform(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Returns float32 numbers in [0, 1)."""
    if not is_compiled_by_xla():
        return tf.random.stateless_uniform(shape, seed)
    mask = tf.constant(2**23 - 1, tf.uint32)
    fraction = tf.bitwise.bitwise_and(_integers(shape, seed, tf.uint32), mask)
    return tf.cast(fraction, tf.float32) * 2.0**-23


def integer(seed: tf.Tensor, low: int, high: int | tf.Tensor) -> tf.Tensor:
    """Returns an int32 scalar from `low` to `high - 1`."""
    if not is_compiled_by_xla():
        return tf.random.stateless_uniform((), seed, low, high, tf.int32)
    size = tf.cast(high - low, tf.uint32)
    return low + tf.cast(_integers([], seed, tf.uint32) % size, tf.int32)


def normal(shape: Any, seed: Any, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Returns standard normal numbers. They are the same under XLA only in float32."""
    if dtype != tf.float32 or not is_compiled_by_xla():
        return tf.random.stateless_normal(shape, seed, dtype=dtype)
    size = tf.reduce_prod(tf.convert_to_tensor(shape, tf.int32))
    first, second = tf.unstack(uniform([(size + 1) // 2, 2], seed), axis=1)
    # The method of Box and Muller, with TensorFlow's bound.
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(first, 1e-7)))
    angle = 2.0 * np.pi * second
    pairs = tf.stack([radius * tf.sin(angle), radius * tf.cos(angle)], axis=1)
    return tf.reshape(tf.reshape(pairs, [-1])[:size], shape)


def _integers(shape: Any, seed: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns, under XLA, the integers that TensorFlow draws without XLA.

    XLA extends a negative seed to 64 bits in another way. It also converts the same
    integers to other fractions.
    """
    extended = tf.cast(tf.cast(seed, tf.int64), tf.uint64)
    scrambling = tf.constant([_SCRAMBLING_KEY], tf.uint64)
    mixed = tf.cast(_philox([2, 2], scrambling, extended, tf.uint32), tf.uint64)
    low, high = tf.unstack(mixed, axis=1)
    key, counter = tf.split(low + high * 2**32, 2)
    counter = tf.concat([tf.zeros_like(counter), counter], axis=0)
    return _philox(shape, key, counter, dtype)


def _philox(
    shape: Any, key: tf.Tensor, counter: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    draw = tf.raw_ops.StatelessRandomUniformFullIntV2
    shape = tf.convert_to_tensor(shape, tf.int32)
    return draw(shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype)


def normal_like(value: Nest, seed: tf.Tensor) -> Nest:
    """Returns a nest of standard normal tensors like `value`."""
    leaves = []
    for i, leaf in enumerate(tree.flatten(value)):
        leaves.append(normal(tf.shape(leaf), fold_in(seed, i), dtype=leaf.dtype))
    return tree.pack_sequence_as(value, leaves)


class SavesRandomState:
    """Mixin: a layer that saves and restores the state of its `seed_generator`.

    Keras' own layers, such as `Dropout`, restart their random numbers when a model is
    loaded. The saved state is ignored if the layer was built with another seed.
    """

    seed: int | None

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        save_state(getattr(self, "seed_generator", None), store)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        generator = getattr(self, "seed_generator", None)
        super().load_own_variables(load_state(generator, self.seed, store))  # type: ignore[misc]


def save_state(
    generator: keras.random.SeedGenerator | None, store: MutableMapping[str, Any]
) -> None:
    """Stores the state of a seed generator beside the variables of a layer."""
    if generator is not None:
        store[_KEY] = keras.ops.convert_to_numpy(generator.state)


def load_state(
    generator: keras.random.SeedGenerator | None,
    seed: int | None,
    store: Mapping[str, Any],
) -> dict[str, Any]:
    """Restores the state of a seed generator; returns the other variables.

    Args:
        generator: The `SeedGenerator`.
        seed: Integer or `None`. A generator with another seed keeps its own state.
        store: Mapping that contains what `save_state` stored, or lacks it.
    """
    if generator is not None and _KEY in store.keys():
        saved = np.asarray(store[_KEY])
        own = keras.ops.convert_to_numpy(generator.state)
        if seed is None or saved[0] == own[0]:
            generator.state.assign(saved)
    return {name: store[name] for name in store.keys() if name != _KEY}
