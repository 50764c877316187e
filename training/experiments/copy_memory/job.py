"""Builds, trains and evaluates a network that copies symbols."""

import operator

import keras
import tensorflow as tf

from ...evaluation.readout import measure_at_budgets
from ...runs.job import Job
from .build import build_network, copy_memory


class CopyMemoryJob(Job):
    """One network of the copy memory task."""

    monitor = "val_loss"
    is_better = staticmethod(operator.lt)

    @staticmethod
    def load_data(config, folder):
        del folder
        training = copy_memory(config.num_train, config.delay, config.seed)
        return training, copy_memory(config.num_test, config.delay, config.seed + 1)

    @property
    def steps_per_epoch(self):
        return -(-self.config.data.num_train // self.config.data.batch_size)

    def build_model(self):
        return build_network(self.config.model, self.config.precision)

    def equilibrium(self, model):
        is_one = self.config.model.network == "deq_transformer"
        return super().equilibrium(model) if is_one else None

    def compile(self, model, optimizer):
        model.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=self.config.jit_compile,
        )

    def fit_arguments(self, epochs):
        del epochs
        (inputs, targets), test = self.data
        return {
            "x": inputs,
            "y": targets,
            "batch_size": self.config.data.batch_size,
            "validation_data": test,
        }

    def first_inputs(self):
        return self.data[1][0][: self.config.evaluation.num_samples]

    def measure(self, answer, budgets, model=None):
        batches = tf.data.Dataset.from_tensor_slices(self.data[1])
        batches = batches.batch(self.config.data.batch_size)
        return measure_at_budgets(answer, batches, _loss, budgets)


def _loss(logits, targets):
    """Returns the mean loss over the positions of each sequence, in nats."""
    losses = keras.ops.sparse_categorical_crossentropy(
        targets, logits, from_logits=True
    )
    return {"loss": keras.ops.mean(losses, axis=-1)}
