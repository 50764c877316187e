"""How an image classifier is made, compiled and fed."""

import operator

import keras

from training.build import build_classifier, build_optimizer
from training.data import (
    evaluation_batches,
    sample,
    steps_per_epoch,
    training_batches,
)
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
    def steps_per_epoch(self):
        return steps_per_epoch(self.data.training, self.config.data.batch_size)

    def build_model(self):
        """Returns a new model."""
        return build_classifier(self.config.model, self.data, self.config.precision)

    def build(self):
        config, model = self.config, self.build_model()
        spans = phase_spans(config)
        optimizer = build_optimizer(
            config.optimizer,
            spans[-1].epochs.stop,
            self.steps_per_epoch,
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
            "steps_per_epoch": self.steps_per_epoch,
        }

    def parts(self, model):
        """Returns the `EquilibriumParts` of a model."""
        return cut(model)

    def batches(self, model, split):
        """Returns batches of a split as the model takes them, in their order."""
        del model
        return evaluation_batches(split, self.config.data.evaluation_batch_size)

    def evaluate(self, model, budgets):
        batches = self.batches(model, self.data.test)
        return accuracy_at_budgets(self.parts(model), batches, budgets)

    def diagnose(self, model):
        config = self.config.evaluation
        parts = self.parts(model)
        split = self.data.test.part(0, config.num_samples)
        images = (images for images, _ in self.batches(model, split))
        return diagnose(parts.layer, parts.encode, images, config.max_iter)

    def export(self, model, path):
        return export(model, sample(self.data.test, 8), path)
