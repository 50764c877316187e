"""Builds a multiscale DEQ for segmentation, and its loss, from a config."""

from deq_keras import models

from ...errors import InputError, config_errors
from ..classification.mdeq import build_backbone, converter
from .loss import (
    HardPixelCrossEntropy,
    PixelCrossEntropy,
)


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
    for name, size in _sizes(config, data):
        _check_size(name, size, 2**num_halvings)
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


def _sizes(config, data):
    yield "data.image_size", data.image_size
    yield "data.crop_size", data.crop_size
    if config.evaluation.window is not None:
        yield "evaluation.window", tuple(config.evaluation.window)


def _check_size(name, size, divisor):
    if any(length % divisor for length in size):
        raise InputError(
            f"`{name}` must be [height, width] divisible by {divisor}, which is 2 to "
            "the power of model.num_downsamplings + number of model.filters - 1. "
            f"Received: {list(size)}."
        )
