"""How an image classifier is made, compiled and fed."""

import operator

import keras

from ...conversion.export import export
from ...data.images import (
    evaluation_batches,
    load,
    sample,
    steps_per_epoch,
    training_batches,
)
from ...evaluation.cut_model import cut, equilibrium_layer
from ...runs.job import Job
from .build import build_classifier
from .measure import accuracy_at_budgets


class ClassificationJob(Job):
    """One variant of an image classifier.

    Args:
        config: a `ClassificationConfig`.
        data: the `ImageData`.
        folder: of the run.
    """

    monitor = "val_accuracy"
    is_better = staticmethod(operator.gt)

    @staticmethod
    def load_data(config, folder):
        del folder
        return load(config)

    @property
    def steps_per_epoch(self):
        return steps_per_epoch(self.data.training, self.config.data.batch_size)

    def build_model(self):
        return build_classifier(self.config.model, self.data, self.config.precision)

    def equilibrium(self, model):
        return equilibrium_layer(model)

    def compile(self, model, optimizer):
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=self.config.jit_compile,
        )

    def fit_arguments(self, epochs):
        config = self.config.data
        return {
            "x": training_batches(
                self.data.training,
                config.batch_size,
                config.augmentation,
                self.config.seed,
                epochs,
            ),
            "validation_data": evaluation_batches(
                self.data.validation, config.evaluation_batch_size
            ),
            "steps_per_epoch": self.steps_per_epoch,
        }

    def cut(self, model):
        return cut(model)

    def batches(self, model, split):
        """Returns batches of a split as the model takes them, in their order."""
        del model
        return evaluation_batches(split, self.config.data.evaluation_batch_size)

    def evaluate(self, model, budgets):
        batches = self.batches(model, self.data.test)
        return accuracy_at_budgets(self.cut(model), batches, budgets)

    def samples(self, model):
        split = self.data.test.part(0, self.config.evaluation.num_samples)
        return (images for images, _ in self.batches(model, split))

    def export(self, model, path):
        return export(model, sample(self.data.test, 8), path)
