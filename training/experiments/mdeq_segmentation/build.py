"""Builds a multiscale DEQ for segmentation, and its loss, from a config."""

from deq_keras import models

from ...errors import InputError, config_errors
from ..classification.mdeq import build_backbone, converter
from .loss import (
    HardPixelCrossEntropy,
    PixelCrossEntropy,
)


def build_segmenter(config, data):
    """Returns the `MDEQImageSegmenter` of raw images of any size that it can divide.

    Args:
        config: an `MDEQSegmentationConfig`.
        data: the `SegmentationData`.

    Raises:
        InputError: if the model refuses an argument, or the scales do not divide the
            size of the images or crops.
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
    """Returns the loss of an `MDEQSegmentationConfig`.

    Raises:
        InputError: if there is not one weight for each class.
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
