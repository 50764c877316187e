"""The images of a segmentation experiment, in three splits."""

from typing import NamedTuple

from ...errors import InputError
from ..splits import Split, first
from . import cityscapes, shapes
from .transforms import Classes

_SOURCES = {"cityscapes": cityscapes, "shapes": shapes}


class SegmentationData(NamedTuple):
    """The images of one experiment.

    Attributes:
        training: `Split` to learn from.
        validation: `Split` that is evaluated after each epoch.
        test: `Split` that tables report.
        classes: the `Classes`.
        image_size: `(height, width)` of all images.
        crop_size: `(height, width)` of the crops that training sees.
        mean: Tuple of the means of the channels, for normalization.
        standard_deviation: Tuple of the standard deviations of the channels.
    """

    training: Split
    validation: Split
    test: Split
    classes: Classes
    image_size: tuple
    crop_size: tuple
    mean: tuple
    standard_deviation: tuple


def load(config):
    """Returns the `SegmentationData` of a `SegmentationDataConfig`.

    Raises:
        InputError: If the data cannot be read or has fewer images than asked for.
    """
    source = _SOURCES[config.name]
    image_size = tuple(config.image_size or source.IMAGE_SIZE)
    training, test = _splits(config, image_size)
    if len(training) < config.batch_size:
        raise InputError(
            f"`data.batch_size` must be at most {len(training)}, the number of "
            f"training images. Received: batch_size={config.batch_size}."
        )
    return SegmentationData(
        training=training,
        validation=first(test, config.validation_examples, "validation_examples"),
        test=test,
        classes=source.CLASSES,
        image_size=image_size,
        crop_size=tuple(config.crop_size or image_size),
        mean=source.MEAN,
        standard_deviation=source.STANDARD_DEVIATION,
    )


def _splits(config, image_size):
    if config.name == "shapes":
        if config.directory is not None:
            raise InputError(
                "The shapes are synthetic and take no `data.directory`. "
                f"Received: directory={config.directory!r}."
            )
        return shapes.load(image_size, config.train_examples, config.test_examples)
    training, test = cityscapes.load(config.directory, image_size)
    return (
        first(training, config.train_examples, "train_examples"),
        first(test, config.test_examples, "test_examples"),
    )
