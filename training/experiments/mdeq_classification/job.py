"""How a multiscale DEQ for classification is made, compiled and fed."""

import keras

from ...data.images import sample
from ...evaluation.cut_model import CutModel
from ..classification.build import normalization
from ..classification.job import ClassificationJob
from ..classification.measure import accuracy_of_layers
from .build import build_explicit, build_mdeq


class MDEQJob(ClassificationJob):
    """One variant: a multiscale DEQ, or an explicit network in its place.

    Args:
        config: an `MDEQClassificationConfig`.
        data: the `ImageData`.
    """

    def build_model(self):
        config = self.config
        build = build_mdeq if config.model.explicit is None else build_explicit
        return build(config.model, self.data, config.precision)

    def equilibrium(self, model):
        backbone = getattr(model, "backbone", None)
        return getattr(backbone, "deq", None)

    def cut(self, model):
        return CutModel(model.backbone.stem, model.backbone.deq, model.head)

    def evaluate(self, model, budgets):
        if self.equilibrium(model) is not None:
            return super().evaluate(model, budgets)
        num_layers = int(self.config.model.explicit.network.rpartition("_")[2])
        batches = self.batches(model, self.data.test)
        return [accuracy_of_layers(model, num_layers, batches)]

    def callbacks(self, model):
        if self.equilibrium(model) is None:
            return []
        images = sample(self.data.validation, self.config.evaluation.num_samples)
        return [self.diagnostics(model, model.preprocessor(images))]

    def servable(self, model):
        """Logits of raw pixels: what the preprocessor does is part of it."""
        pixels = keras.Input(self.data.image_shape, name="pixels")
        images = pixels
        if self.equilibrium(model) is not None:
            policy = keras.DTypePolicy(self.config.precision)
            images = normalization(self.data, policy)(pixels)
        whole = keras.Model(pixels, model(images), name="classifier")
        return super().servable(whole)
