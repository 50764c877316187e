"""Builds, trains and evaluates an image classifier."""

import keras
import numpy as np

from deq_keras import models

from ...data.images import load, sample
from ...evaluation.audit import Group
from ...evaluation.readout import EncoderSolverHead, measure_at_budgets
from ...runs.job import ImageJob
from .build import build_model
from .mdeq import convert, converter, normalization_of

# Number of images whose equilibria the training of a small model monitors. In the main
# job, they take 4 % of the time of an epoch.
_NUM_MONITORED = 4


class ClassificationJob(ImageJob):
    """One variant of an image classifier. `model.name` of the config selects it."""

    monitor = "val_accuracy"

    @staticmethod
    def load_data(config, folder):
        del folder
        return load(config)

    def build_model(self):
        return build_model(self.config.model, self.data, self.config.precision)

    @property
    def _is_multiscale(self):
        return self.config.model.name == "mdeq"

    @property
    def _is_explicit(self):
        return self._is_multiscale and self.config.model.explicit is not None

    def split(self, model):
        if self._is_explicit:
            return None
        if self._is_multiscale:
            return EncoderSolverHead(
                model.backbone.stem, model.backbone.deq, model.head
            )
        return super().split(model)

    def load_reference(self, state_dict):
        if not self._is_multiscale or self._is_explicit:
            return super().load_reference(state_dict)
        preprocessor = models.MDEQImageClassifierPreprocessor(converter(self.data))
        return convert(
            state_dict,
            self.config.model,
            self.data.num_classes,
            preprocessor,
            self.config.precision,
        )

    def compile(self, model, optimizer):
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=self.config.jit_compile,
        )

    def make_callbacks(self, model):
        if self._is_explicit:
            return []
        num_samples = self.config.evaluation.num_samples
        if self._is_multiscale:
            images = sample(self.data.validation, num_samples)
            return self.watch_equilibrium(model, model.preprocessor(images))
        images = sample(self.data.validation, min(num_samples, _NUM_MONITORED))
        return self.watch_equilibrium(model, images)

    @property
    def num_layers(self):
        return int(self.config.model.explicit.network.rpartition("_")[2])

    def measure(self, answer, budgets, model=None):
        batches = self.batches(model, self.data.test)
        return measure_at_budgets(answer, batches, accuracy, budgets)

    def group_problems(self, model):
        batches = self.batches(model, self.data.test).as_numpy_iterator()
        images, labels = map(np.concatenate, zip(*batches, strict=True))
        return [Group("test", images, labels)]

    def prepare_export(self, model):
        if self._is_multiscale:
            # The export accepts raw pixels, so it includes the normalization.
            shape = self.sample_inputs.shape[1:]
            pixels = images = keras.Input(shape, name="pixels")
            if not self._is_explicit:
                images = normalization_of(model, self.config.precision)(pixels)
            model = keras.Model(pixels, model(images), name="classifier")
        return model, self.sample_inputs[:8]


def accuracy(logits, labels):
    """Returns whether each image is classified correctly."""
    return {"accuracy": np.argmax(logits, axis=-1) == np.asarray(labels)}
