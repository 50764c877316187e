"""How an image classifier is made, compiled and fed."""

import operator

import keras
import numpy as np

from ...data.images import load, sample, training_batches
from ...evaluation.audit import Group
from ...evaluation.cut_model import cut, equilibrium_layer
from ...runs.image_job import ImageJob
from .build import build_classifier
from .measure import accuracy_at_budgets


class ClassificationJob(ImageJob):
    """One variant of an image classifier.

    Args:
        config: a `ClassificationConfig`.
        data: the `ImageData`.
        folder: of the run.
        distribution: of the training.
    """

    monitor = "val_accuracy"
    is_better = staticmethod(operator.gt)

    @staticmethod
    def load_data(config, folder):
        del folder
        return load(config)

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

    def training_batches(self, epochs, share):
        config = self.config.data
        return training_batches(
            self.data.training,
            config.batch_size,
            config.augmentation,
            self.config.seed,
            epochs,
            self.distribution.drops_remainder,
            share,
        )

    def cut(self, model):
        return cut(model)

    def evaluate(self, model, budgets):
        batches = self.batches(model, self.data.test)
        return accuracy_at_budgets(self.cut(model), batches, budgets)

    def evaluate_export(self, exported, budgets):
        pixels = self.batches(None, self.data.test)
        return accuracy_at_budgets(exported, pixels, budgets)

    def groups(self, model):
        batches = self.batches(model, self.data.test).as_numpy_iterator()
        images, labels = map(np.concatenate, zip(*batches, strict=True))
        return [Group("test", images, labels)]

    def servable(self, model):
        return model, sample(self.data.test, 8)
