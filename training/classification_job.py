"""How an image classifier is made, compiled and fed."""

import operator

import keras
import tensorflow as tf

from training.build import build_classifier, build_optimizer
from training.data import evaluation_batches, steps_per_epoch, training_batches
from training.diagnose import diagnose
from training.equilibrium_parts import cut
from training.evaluate import accuracy_at_budgets
from training.export import export
from training.phases import equilibrium_layer, phase_spans
from training.train import Job


class ClassificationJob(Job):
    """One variant of an image classifier.

    Args:
        config: a `ClassificationConfig`.
        data: the `ImageData`.
    """

    def __init__(self, config, data):
        super().__init__(config, "val_accuracy", operator.gt)
        self.data = data

    @property
    def _steps_per_epoch(self):
        return steps_per_epoch(self.data.training, self.config.data.batch_size)

    def build(self):
        config = self.config
        model = build_classifier(config.model, self.data, config.precision)
        spans = phase_spans(config)
        optimizer = build_optimizer(
            config.optimizer,
            spans[-1].epochs.stop,
            self._steps_per_epoch,
            config.precision,
        )
        return model, optimizer, spans

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
            "steps_per_epoch": self._steps_per_epoch,
        }

    def evaluate(self, model, budgets):
        return accuracy_at_budgets(
            model, self.data.test, budgets, self.config.data.evaluation_batch_size
        )

    def diagnose(self, model):
        config = self.config.evaluation
        parts = cut(model)
        batches = evaluation_batches(self.data.test.part(0, config.num_samples), 64)
        images = (images for images, _ in batches)
        return diagnose(parts.layer, parts.encode, images, config.max_iter)

    def export(self, model, path):
        images = tf.cast(self.data.test.images[:8], tf.float32)
        return export(model, images, path)
