"""Load the labeled images of an experiment, in three splits."""

from typing import NamedTuple

from ...errors import InputError
from ..splits import Split, first
from . import cifar10, digits, imagenet


class ImageData(NamedTuple):
    """The images of one experiment.

    Attributes:
        training: `Split` to learn from.
        validation: `Split` that is evaluated after each epoch.
        test: `Split` that tables report.
        num_classes: Number of labels.
        mean: Tuple of the means of the channels, for normalization.
        standard_deviation: Tuple of the standard deviations of the channels.
    """

    training: Split
    validation: Split
    test: Split
    num_classes: int
    mean: tuple
    standard_deviation: tuple

    @property
    def image_shape(self):
        """`(height, width, channels)` of all images."""
        return self.training.image_shape


def load(config):
    """Returns the `ImageData` of a `DataConfig`.

    Raises:
        InputError: if the data cannot be read, has fewer images than asked for, or does
            not have a setting of the config.
    """
    _check_settings(config)
    if config.name == "digits":
        source, (training, test) = digits, digits.load()
        num_classes = digits.NUM_CLASSES
    elif config.name == "cifar10":
        source, (training, test) = cifar10, cifar10.load(config.directory)
        num_classes = cifar10.NUM_CLASSES
    else:
        source, num_classes = imagenet, imagenet.SOURCES[config.name].num_classes
        training, test = imagenet.load(
            config.name, config.directory, config.image_size or imagenet.IMAGE_SIZE
        )
    training = first(training, config.train_examples, "train_examples")
    test = first(test, config.test_examples, "test_examples")
    training, validation = _held_out(training, config.validation_examples)
    return ImageData(
        training=training,
        validation=validation or test,
        test=test,
        num_classes=num_classes,
        mean=source.MEAN,
        standard_deviation=source.STANDARD_DEVIATION,
    )


def _check_settings(config):
    if config.name == "digits" and config.directory is not None:
        raise InputError(
            "The digits are embedded and take no `data.directory`. "
            f"Received: directory={config.directory!r}."
        )
    augmentation = config.augmentation
    if config.name in imagenet.SOURCES:
        if augmentation.crop_padding:
            raise InputError(
                f"The images of {config.name} have many sizes: use "
                "`data.augmentation.resized_crop`, and `crop_padding` for images of "
                f"one size. Received: crop_padding={augmentation.crop_padding}."
            )
        return
    if augmentation.resized_crop or config.image_size is not None:
        raise InputError(
            f"The images of {config.name} are all of one size: use "
            "`data.augmentation.crop_padding`. `resized_crop` and `data.image_size` "
            f"are for {' and '.join(imagenet.SOURCES)}. Received: "
            f"resized_crop={augmentation.resized_crop}, image_size={config.image_size}."
        )


def _held_out(training, count):
    if count >= len(training):
        raise InputError(
            f"`data.validation_examples` must be less than {len(training)}, the number "
            f"of training images. Received: validation_examples={count}."
        )
    stop = len(training) - count
    return training.part(0, stop), training.part(stop, None) if count else None
