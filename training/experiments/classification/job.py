"""Builds, trains and evaluates an image classifier."""

import keras
import numpy as np

from deq_keras import layers, models
from deq_keras.converters import locuslab

from ...data.images import decode_once, load, sample
from ...evaluation.budgets import measure_at_budgets
from ...runs.feed import ImageFeed
from ...runs.job import Job, watch_equilibrium
from .build import build_model
from .mdeq import convert, converter, normalization_of

# Number of images whose equilibria the training of a small model monitors. In the main
# job, they take 4 % of the time of an epoch.
_NUM_MONITORED = 4


class ClassificationFeed(ImageFeed):
    """Images with one label each."""

    def fit_arguments(self, steps):
        if not self.augmentation.resized_crop:
            self.data = decode_once(self.data)
        return super().fit_arguments(steps)

    def test_inputs(self, model):
        batches = self.batches(model, self.data.test).as_numpy_iterator()
        return {"test": np.concatenate([images for images, _ in batches])}


class ClassificationJob(Job):
    """One variant of an image classifier. `model.name` of the config selects it."""

    feed_class = ClassificationFeed
    monitor = "val_accuracy"

    @classmethod
    def load_data(cls, config, folder):
        return load(config)

    def build_model(self):
        return build_model(self.config.model, self.data, self.config.precision)

    @property
    def _is_multiscale(self):
        return self.config.model.name == "mdeq"

    @property
    def _is_explicit(self):
        return self._is_multiscale and self.config.model.explicit is not None

    def load_reference(self, state_dict):
        if self.config.model.name == "monotone":
            return self._load_monotone(state_dict)
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

    def _load_monotone(self, state_dict):
        """Returns the model of the config with the weights of a state dict."""
        model = self.build_model()
        is_dense = isinstance(model.deq.cell, layers.MonotoneDenseCell)
        source = locuslab.load_monotone_network(
            state_dict, model.deq.cell.m, None if is_dense else self.data.image_shape[0]
        )
        weights, others = (
            [*one.deq.cell.weights, *one.classifier.weights] for one in (model, source)
        )
        sizes, found = ([tuple(w.shape) for w in one] for one in (weights, others))
        if type(model.deq.cell) is not type(source.deq.cell) or sizes != found:
            raise ValueError(
                "The checkpoint must have the cell and the sizes of the config's model."
                f" Expected: {type(model.deq.cell).__name__} with weights of shapes "
                f"{sizes}. Received: {type(source.deq.cell).__name__}, {found}."
            )
        for weight, other in zip(weights, others, strict=True):
            weight.assign(other)
        return model

    def objective(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"loss": loss, "metrics": ["accuracy"]}

    def make_callbacks(self, model):
        if self._is_explicit:
            return []
        evaluation, split = self.config.evaluation, self.data.validation
        if self._is_multiscale:
            images = model.preprocessor(sample(split, evaluation.num_samples))
        else:
            images = sample(split, min(evaluation.num_samples, _NUM_MONITORED))
        return watch_equilibrium(model, images, evaluation.max_iter)

    @property
    def num_layers(self):
        return int(self.config.model.explicit.network.rpartition("_")[2])

    def measure(self, predict, budgets, model=None, data=None):
        batches = self.feed.batches(model, data or self.data.test)
        return measure_at_budgets(predict, batches, accuracy, budgets)

    def prepare_export(self, model):
        if self._is_multiscale:
            # The export accepts raw pixels, so it includes the normalization.
            shape = self.feed.samples.shape[1:]
            pixels = images = keras.Input(shape, name="pixels")
            if not self._is_explicit:
                images = normalization_of(model, self.config.precision)(pixels)
            model = keras.Model(pixels, model(images), name="classifier")
        return super().prepare_export(model)


def accuracy(logits, labels):
    """Returns whether each image is classified correctly."""
    return {"accuracy": np.argmax(logits, axis=-1) == np.asarray(labels)}
