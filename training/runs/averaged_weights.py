"""Averages of the weights, in their places where a model is measured or kept."""

import contextlib

import keras


class AveragedWeights(keras.callbacks.SwapEMAWeights):
    """Validates with the averages that an optimizer keeps, and ends a phase with them.

    Keras replaces the weights by their averages when `fit` ends. Here that happens
    before the last epoch is saved, so that what is continued from there is the same.
    """

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.params["epochs"]:
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    @contextlib.contextmanager
    def in_place(self):
        """As long as it lasts, the weights are the averages."""
        self.on_test_begin()
        yield
        self.on_test_end()
