"""Builds, trains and evaluates a multiscale DEQ for segmentation."""

import keras
import numpy as np
import tensorflow as tf

import deq_keras
from deq_keras import models

from ...data.segmentation import IGNORED, evaluation_batches, load, sample
from ...errors import InputError, config_errors
from ...evaluation.budgets import measure_at_budgets
from ...files.atomic_file import replacing
from ...runs.feed import ImageFeed
from ...runs.job import Job, watch_equilibrium
from ..classification.mdeq import build_backbone, convert, converter, normalization_of
from .loss import HardPixelCrossEntropy, PixelCrossEntropy


class SegmentationFeed(ImageFeed):
    """Images with a label for each pixel."""

    @property
    def augmentation(self):
        return self.config.data.augmentation, self.data.crop_size


class MDEQSegmentationJob(Job):
    """One variant of a multiscale DEQ for segmentation."""

    feed_class = SegmentationFeed
    monitor = "val_mean_iou"

    @classmethod
    def load_data(cls, config, folder):
        return load(config)

    def build_model(self):
        build_loss(self.config, self.data)  # Raises early if the config is invalid.
        return build_segmenter(self.config, self.data)

    def load_reference(self, state_dict):
        preprocessor = models.MDEQImageSegmenterPreprocessor(converter(self.data))
        return convert(
            state_dict,
            self.config.model,
            len(self.data.classes),
            preprocessor,
            self.config.precision,
        )

    def objective(self):
        num_classes = len(self.data.classes)
        score = keras.metrics.MeanIoU(
            num_classes, "mean_iou", ignore_class=IGNORED, sparse_y_pred=False
        )
        return {"loss": build_loss(self.config, self.data), "metrics": [score]}

    def make_callbacks(self, model):
        evaluation = self.config.evaluation
        images = sample(self.data.validation, evaluation.num_samples)
        images = model.preprocessor(images)
        return watch_equilibrium(model, images, evaluation.max_iter)

    def evaluate(self, model, budgets):
        """See `Job`. Writes overlays at the largest budget into the folder."""
        found = super().evaluate(model, budgets)
        self._write_overlays(model, max(budgets))
        return found

    def measure(self, predict, budgets, model=None, data=None):
        batches = self.feed.batches(model, data or self.data.test)
        names = self.data.classes.names

        def score(logits, labels):
            predicted, labels = np.argmax(logits, axis=-1), np.asarray(labels)
            return {"confusion": confusion_matrix(labels, predicted, len(names))}

        def summarize(scores):
            return segmentation_scores(sum(s["confusion"] for s in scores), names)

        return measure_at_budgets(predict, batches, score, budgets, summarize)

    def _write_overlays(self, model, budget):
        predict = deq_keras.diagnostics.Predictor(model)
        folder, palette = self.folder / "overlays", self.data.classes.palette
        folder.mkdir(exist_ok=True)
        samples = self.data.test.part(0, self.config.evaluation.num_overlays)
        if not len(samples):
            return
        for index, (images, labels) in enumerate(evaluation_batches(samples, 1)):
            logits = predict(model.preprocessor(images), budget).outputs
            predicted = np.argmax(logits, axis=-1)
            for name, classes in (("predicted", predicted), ("labels", labels)):
                path = folder / f"{index:03d}-{name}.png"
                write_overlay(path, images[0], classes[0], palette)

    def prepare_export(self, model):
        """See `Job`. The export returns logits of raw pixels, and so includes the
        preprocessor."""
        pixels = keras.Input((None, None, 3), name="pixels")
        images = normalization_of(model, self.config.precision)(pixels)
        whole = keras.Model(pixels, model(images), name="segmenter")
        return whole, self.feed.samples[:2]


def build_segmenter(config, data):
    """Builds the `MDEQImageSegmenter` for raw images of any divisible size.

    Args:
        config: An `MDEQSegmentationConfig`.
        data: The `SegmentationData`.

    Raises:
        InputError: If an argument of the model is invalid, or the scales do not divide
            the size of the images or crops.
    """
    num_halvings = config.model.num_downsamplings + len(config.model.filters) - 1
    _check_size("data.image_size", data.image_size, 2**num_halvings)
    _check_size("data.crop_size", data.crop_size, 2**num_halvings)
    backbone = build_backbone(
        config.model,
        (None, None, 3),
        config.precision,
        batch_norm_momentum=config.model.batch_norm_momentum,
    )
    with config_errors("model"):
        return models.MDEQImageSegmenter(
            backbone,
            len(data.classes),
            config.model.kernel_size,
            preprocessor=models.MDEQImageSegmenterPreprocessor(converter(data)),
        )


def build_loss(config, data):
    """Builds the loss of an `MDEQSegmentationConfig`.

    Raises:
        InputError: If the number of weights differs from the number of classes.
    """
    weights, num_classes = config.class_weights, len(data.classes)
    if weights is not None and len(weights) != num_classes:
        raise InputError(
            f"`class_weights` must have one entry for each of the {num_classes} "
            f"classes, or be null. Received: {len(weights)} entries."
        )
    if config.ohem is None:
        return PixelCrossEntropy(weights)
    return HardPixelCrossEntropy(weights, config.ohem.threshold, config.ohem.keep)


def _check_size(name, size, divisor):
    if any(length % divisor for length in size):
        raise InputError(
            f"`{name}` must be [height, width] divisible by {divisor}, which is 2 to "
            "the power of model.num_downsamplings + number of model.filters - 1. "
            f"Received: {list(size)}."
        )


def confusion_matrix(labels, predicted, num_classes):
    """Counts the pixels of each class (row) by their predicted class (column).

    Args:
        labels: Integer array. Pixels with label 255 are ignored.
        predicted: Integer array of the same shape. Predicted classes.
        num_classes: Positive integer.
    """
    is_valid = labels != IGNORED
    pairs = labels[is_valid] * num_classes + predicted[is_valid]
    counts = np.bincount(pairs, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def class_iou(confusion):
    """Returns the intersection over union of each class, NaN for classes that neither
    labels nor predictions contain."""
    intersection = np.diag(confusion)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - intersection
    return np.where(union > 0, intersection / np.maximum(union, 1), np.nan)


def segmentation_scores(confusion, class_names):
    """Returns `mean_iou`, `class_iou` by class name, and `pixel_accuracy`."""
    scores = class_iou(confusion)
    return {
        "mean_iou": float(np.nanmean(scores)),
        "class_iou": {
            name: None if np.isnan(score) else float(score)
            for name, score in zip(class_names, scores, strict=True)
        },
        "pixel_accuracy": float(np.trace(confusion) / confusion.sum()),
    }


def write_overlay(path, image, labels, palette):
    """Writes an image, blended equally with the colors of its classes, as PNG.

    Replaces the file atomically. Pixels with label 255 do not change.

    Args:
        path: `pathlib.Path` of the PNG file, in an existing folder.
        image: Array `(height, width, 3)`. Pixels from 0 to 255.
        labels: Integer array `(height, width)`. Classes of the pixels.
        palette: Sequence with one `(red, green, blue)` per class.
    """
    image, labels = np.asarray(image, "float32"), np.asarray(labels)
    is_ignored = labels == IGNORED
    colors = np.asarray(palette, "float32")[np.where(is_ignored, 0, labels)]
    mixed = np.where(is_ignored[..., None], image, (image + colors) / 2)
    pixels = np.clip(np.rint(mixed), 0, 255).astype("uint8")
    with replacing(path) as temporary:
        temporary.write_bytes(tf.io.encode_png(pixels).numpy())
