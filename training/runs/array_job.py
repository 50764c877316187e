"""Base class of jobs whose models train on arrays."""

import math
import operator

import numpy as np
import tensorflow as tf

from .. import registry
from ..data.pipeline import array_batches
from ..evaluation.readout import measure_at_budgets, split_model
from .job import Job

_EVALUATION_BATCH_SIZE = 256


class ArrayJob(Job):
    """One variant of a functional model with a `DEQ` layer `deq`; see `Job`.

    `load_data` returns a function from a seed to the training and the test data, each a
    tuple of arrays `(inputs, targets)`.

    Args:
        config: A `VariantsConfig` with `data.batch_size`.
        load: Function that returns the result of `load_data`.
        folder: See `Job`.
        distribution: See `Job`.
    """

    monitor = "loss"
    is_better = staticmethod(operator.lt)
    counts_failures = True

    @property
    def training(self):
        """Returns the training data of the seed of the run."""
        return self.data(self.config.seed)[0]

    @property
    def tested(self):
        """Returns the test data of the seed of the run."""
        return self.data(self.config.seed)[1]

    @property
    def steps_per_epoch(self):
        return math.ceil(len(self.training[0]) / self.config.data.batch_size)

    def equilibrium(self, model):
        return model.get_layer("deq")

    def loss(self):
        """Returns the loss, a name or an object of Keras."""
        raise NotImplementedError

    def score(self, predictions, targets):
        """Returns the score of the experiment for arrays of predictions and targets."""
        raise NotImplementedError

    def compile(self, model, optimizer):
        model.compile(
            optimizer,
            self.loss(),
            jit_compile=self.config.jit_compile,
            # A step takes less time than its dispatch.
            steps_per_execution=self.steps_per_epoch,
        )

    def fit_arguments(self, epochs):
        per_epoch = self.steps_per_epoch
        steps = range(epochs.start * per_epoch, epochs.stop * per_epoch)
        size, seed = self.config.data.batch_size, self.config.seed
        return {
            "x": array_batches(self.training, size, seed, steps),
            "steps_per_epoch": per_epoch,
        }

    def split(self, model):
        return split_model(model)

    def first_inputs(self):
        return self.tested[0][: self.config.evaluation.num_samples]

    def evaluate(self, model, budgets):
        return self._measured(self.opened(model), budgets)

    def evaluate_export(self, exported, budgets):
        return self._measured(exported, budgets)

    def _measured(self, opened, budgets):
        name = registry.find(self.config.experiment).score.name
        batches = tf.data.Dataset.from_tensor_slices(tuple(self.tested))
        return measure_at_budgets(
            opened.answer(),
            batches.batch(_EVALUATION_BATCH_SIZE),
            lambda *pair: [np.asarray(array) for array in pair],
            budgets,
            lambda pairs: {
                name: float(self.score(*map(np.concatenate, zip(*pairs, strict=True))))
            },
        )

    def servable(self, model):
        return model, self.sample_inputs[:8]
