"""Builds, trains and evaluates a network that copies symbols."""

import operator

import keras
import numpy as np
import tensorflow as tf

from ...evaluation.readout import measure_at_budgets, split_model
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
        return model.get_layer("deq") if is_one else None

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

    def split(self, model):
        return split_model(model)

    def first_inputs(self):
        return self.data[1][0][: self.config.evaluation.num_samples]

    def evaluate(self, model, budgets):
        batch_size = self.config.data.batch_size
        if self.equilibrium(model) is None:
            return [_loss_of_network(model, *self.data[1], batch_size)]
        batches = _in_batches(*self.data[1], batch_size)
        return measure_at_budgets(self.opened(model).answer(), batches, _loss, budgets)


def _in_batches(inputs, targets, batch_size):
    """Returns a dataset of batches of `(inputs, targets)`, int32 `(batch, length)`."""
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(batch_size)


def _loss(logits, targets):
    """Returns the mean loss of each sequence, in nats."""
    return {"loss": _losses(targets, logits)}


def _loss_of_network(model, inputs, targets, batch_size):
    """Returns the row of an explicit network, which has a single budget."""
    batches = _in_batches(inputs, targets, batch_size)
    losses = [_losses(said, model(symbols)) for symbols, said in batches]
    return {
        "budget": 1,
        "loss": float(np.mean(np.concatenate(losses))),
        "residual": None,
        "evaluations": 1,
        "converged": None,
    }


def _losses(targets, logits):
    """Returns the mean loss over the positions of each sequence, in nats."""
    losses = keras.ops.sparse_categorical_crossentropy(
        targets, logits, from_logits=True
    )
    return keras.ops.mean(losses, axis=-1)
