"""Builds, trains and evaluates a multiscale DEQ for segmentation."""

import operator

import keras
import numpy as np

from ...data.segmentation import evaluation_batches, load, sample
from ...errors import InputError
from ...evaluation.readout import EncoderSolverHead, measure_at_budgets
from ...runs.job import ImageJob
from ..classification.mdeq import normalization_of
from .build import build_loss, build_segmenter
from .measure import (
    BudgetPredictor,
    confusion_matrix,
    segmentation_scores,
    write_overlay,
)


class MDEQSegmentationJob(ImageJob):
    """One variant of a multiscale DEQ for segmentation.

    Args:
        config: An `MDEQSegmentationConfig`.
        load: Function that returns the `SegmentationData`.
        folder: `pathlib.Path` of the run. Stores the overlays.
        distribution: Distribution of the training.
    """

    monitor = "val_mean_iou"
    is_better = staticmethod(operator.gt)

    @staticmethod
    def load_data(config, folder):
        del folder
        return load(config)

    def build_model(self):
        build_loss(self.config, self.data)  # Raises early if the config is invalid.
        self.windows()
        return build_segmenter(self.config, self.data)

    def equilibrium(self, model):
        return model.backbone.deq

    def compile(self, model, optimizer):
        num_classes = len(self.data.classes)
        model.compile(
            optimizer=optimizer,
            loss=build_loss(self.config, self.data),
            metrics=[
                keras.metrics.MeanIoU(
                    num_classes, "mean_iou", ignore_class=255, sparse_y_pred=False
                )
            ],
            jit_compile=self.config.jit_compile,
        )

    @property
    def augmentation(self):
        return self.config.data.augmentation, self.data.crop_size

    def callbacks(self, model):
        images = sample(self.data.validation, self.config.evaluation.num_samples)
        return [self.diagnostics(model, model.preprocessor(images))]

    def split(self, model):
        return EncoderSolverHead(model.backbone.stem, model.backbone.deq, model.head)

    def windows(self):
        """Returns size and stride of evaluation windows, or `None` for whole images.

        Raises:
            InputError: If a window or a stride is too large.
        """
        config = self.config.evaluation
        window, stride = config.window, config.stride
        if window is None:
            if stride is not None:
                raise InputError(
                    "`evaluation.stride` needs an `evaluation.window`. "
                    f"Received: stride={stride}, window=null."
                )
            return None, None
        _check_within("window", window, self.data.image_size, "the images")
        stride = stride or window
        _check_within(
            "stride", stride, window, "the windows, since larger ones leave gaps"
        )
        return tuple(window), tuple(stride)

    def evaluate(self, model, budgets):
        """See `Job`. Writes overlays at the largest budget into the folder."""
        rows = super().evaluate(model, budgets)
        self._write_overlays(model, max(budgets))
        return rows

    def measure(self, answer, budgets, model=None):
        predict = BudgetPredictor(answer, *self.windows()).predict
        batches, names = self.batches(model, self.data.test), self.data.classes.names

        def score(predicted, labels):
            labels = np.asarray(labels)
            return {"confusion": confusion_matrix(labels, predicted, len(names))}

        def summarize(scores):
            return segmentation_scores(sum(s["confusion"] for s in scores), names)

        return measure_at_budgets(predict, batches, score, budgets, summarize)

    def _write_overlays(self, model, budget):
        predictor = BudgetPredictor(self.opened(model).answer(), *self.windows())
        folder, palette = self.folder / "overlays", self.data.classes.palette
        folder.mkdir(exist_ok=True)
        samples = self.data.test.part(0, self.config.evaluation.num_overlays)
        if not len(samples):
            return
        for index, (images, labels) in enumerate(evaluation_batches(samples, 1)):
            predicted, _ = predictor.predict(model.preprocessor(images), budget)
            for name, classes in (("predicted", predicted), ("labels", labels)):
                path = folder / f"{index:03d}-{name}.png"
                write_overlay(path, images[0], classes[0], palette)

    def servable(self, model):
        """See `Job`. The export returns logits of raw pixels, and so includes the
        preprocessor."""
        pixels = keras.Input((None, None, 3), name="pixels")
        images = normalization_of(model, self.config.precision)(pixels)
        whole = keras.Model(pixels, model(images), name="segmenter")
        return whole, self.sample_inputs[:2]


def _check_within(name, size, limit, of_what):
    if len(size) != 2 or any(a > b for a, b in zip(size, limit, strict=True)):
        raise InputError(
            f"`evaluation.{name}` must be two numbers, at most the {list(limit)} of "
            f"{of_what}. Received: {name}={size}."
        )
