"""What a model with a preprocessor does to its data, before they are waited for."""

import functools

import keras
import tensorflow as tf


class Preprocessing:
    """The preprocessing of the model that is trained at the moment, if it has one.

    KerasHub's `fit` would add it at the end of the data, behind the clock of what waits
    for them, and takes no data for several devices.
    """

    def __init__(self):
        self._function = None

    def take_over_from(self, model):
        """Lets `fit` of a model leave it to this object."""
        self._function = getattr(model, "preprocess_samples", None)
        if self._function is not None:
            model.fit = functools.partial(keras.Model.fit, model)

    def __call__(self, batches):
        """Returns a dataset of batches as the model takes them."""
        if self._function is None:
            return batches
        batches = batches.map(
            self._function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return batches.prefetch(tf.data.AUTOTUNE)
