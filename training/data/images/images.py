"""Load the labeled images of an experiment, in three splits."""

from typing import NamedTuple

from ...errors import InputError
from ..splits import Split, first
from . import cifar10, digits, files, imagenet


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
        InputError: If the data cannot be read, has fewer images than asked for, or does
            not have a setting of the config.
    """
    _check_settings(config)
    validation = None
    if config.name == "digits":
        source, (training, test) = digits, digits.load()
        num_classes = digits.NUM_CLASSES
    elif config.name == "cifar10":
        source, (training, test) = cifar10, cifar10.load(config.directory)
        num_classes = cifar10.NUM_CLASSES
    elif config.name in imagenet.SOURCES:
        source, num_classes = imagenet, imagenet.SOURCES[config.name].num_classes
        training, test = imagenet.load(
            config.name, config.directory, config.image_size or imagenet.IMAGE_SIZE
        )
    else:
        source = None
        read = files.from_folder if config.name == "folder" else files.from_tfds
        training, validation, test, num_classes = read(config)
    mean, standard_deviation = (
        files.statistics(config.color_mode)
        if source is None
        else (source.MEAN, source.STANDARD_DEVIATION)
    )
    training = first(training, config.train_examples, "train_examples")
    test = first(test, config.test_examples, "test_examples")
    if config.validation_examples or validation is None:
        training, validation = _held_out(training, config.validation_examples)
    return ImageData(
        training=training,
        validation=validation or test,
        test=test,
        num_classes=num_classes,
        mean=mean,
        standard_deviation=standard_deviation,
    )


def _check_settings(config):
    name, augmentation = config.name, config.augmentation
    if name == "digits" and config.directory is not None:
        raise InputError(
            "The digits are embedded and take no `data.directory`. "
            f"Received: directory={config.directory!r}."
        )
    if name == "folder" and config.directory is None:
        raise InputError(
            "`data.name: folder` needs the folder of images as `data.directory`. "
            "Received: directory=null."
        )
    if (name == "tfds") != (config.dataset is not None):
        raise InputError(
            "`data.dataset` must be the name of a TFDS dataset with `data.name: tfds`, "
            f"and null otherwise. Received: name={name}, dataset={config.dataset}."
        )
    if name in ("folder", "tfds"):
        return
    if config.color_mode != "rgb":
        raise InputError(
            "`data.color_mode: grayscale` is for `data.name: folder` and `tfds`. "
            f"Received: name={name}, color_mode={config.color_mode}."
        )
    if name in imagenet.SOURCES:
        if augmentation.crop_padding:
            raise InputError(
                f"The images of {name} have many sizes: use "
                "`data.augmentation.resized_crop`, and `crop_padding` for images of "
                f"one size. Received: crop_padding={augmentation.crop_padding}."
            )
        return
    if augmentation.resized_crop or config.image_size is not None:
        raise InputError(
            f"The images of {name} are all of one size: use "
            "`data.augmentation.crop_padding`. `resized_crop` and `data.image_size` "
            f"are for folder, tfds, {' and '.join(imagenet.SOURCES)}. Received: "
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
