"""Load the labeled images of an experiment, in three splits."""

import math
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from .. import corruption
from ..pipeline import evaluation_batches
from ..splits import Split, first
from . import cifar10, digits, files, imagenet
from .transforms import in_memory

# Training images whose statistics normalize the images of a folder.
_NUM_MEASURED = 1024
_BATCH_SIZE = 64
# Most bytes of a split that is kept in memory.
_MAX_BYTES = 2**28


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
    training = first(training, config.train_examples, "train_examples")
    test = first(test, config.test_examples, "test_examples")
    if config.validation_examples or validation is None:
        training, validation = _held_out(training, config.validation_examples)
    if config.mean is not None:
        mean, standard_deviation = (
            tuple(255 * value for value in values)
            for values in (config.mean, config.standard_deviation)
        )
    elif source is None:
        mean, standard_deviation = statistics(training)
    else:
        mean, standard_deviation = source.MEAN, source.STANDARD_DEVIATION
    return ImageData(
        training=training,
        validation=validation or test,
        test=test,
        num_classes=num_classes,
        mean=mean,
        standard_deviation=standard_deviation,
    )


def decode_once(data):
    """Returns `ImageData` with small images of one size in memory.

    Otherwise, each epoch decodes their files, which takes longer than the steps of a
    small model. Images that are resized stay in their files.
    """
    # Validation images may be the test images.
    splits = {data.training, data.validation, data.test}
    decoded = {split: _in_memory(split) for split in splits}
    return data._replace(
        training=decoded[data.training],
        validation=decoded[data.validation],
        test=decoded[data.test],
    )


def _in_memory(split):
    shape = (len(split), *split.image_shape)
    if split.transform.of_batches or math.prod(shape) > _MAX_BYTES:
        return split
    images, labels, stop = np.empty(shape, "uint8"), np.empty(len(split), "int32"), 0
    with corruption.locating():
        batches = evaluation_batches(split, _BATCH_SIZE)
        for pixels, numbers in batches.as_numpy_iterator():
            start, stop = stop, stop + len(pixels)
            images[start:stop], labels[start:stop] = pixels, numbers
            if not np.array_equal(images[start:stop], pixels):
                return split
    return in_memory(images, labels)


def statistics(split):
    """Returns means and standard deviations of the channels of a `Split`.

    Raises:
        InputError: If an image cannot be read, or all pixels are equal.
    """
    split = split.part(0, _NUM_MEASURED)
    sums, num_pixels = np.zeros((2, split.image_shape[-1])), 0
    with corruption.locating():
        for images, _ in evaluation_batches(split, _BATCH_SIZE).as_numpy_iterator():
            pixels = images.reshape((-1, images.shape[-1])).astype("float64")
            sums += pixels.sum(axis=0), np.square(pixels).sum(axis=0)
            num_pixels += len(pixels)
    mean, square = sums / num_pixels
    # One gray level in a million pixels, above rounding.
    variance = square - mean**2
    if np.any(variance < 1e-6):
        raise InputError(
            "The training images must have pixels of several values. Set `data.mean` "
            "and `data.standard_deviation` to normalize them. Received: a channel of "
            f"the mean {mean[np.argmin(variance)]:g} without variance."
        )
    return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def _check_settings(config):
    name, augmentation = config.name, config.augmentation
    given = [config.mean, config.standard_deviation]
    num_channels = 1 if config.color_mode == "grayscale" else 3
    lengths = [None if one is None else len(one) for one in given]
    if lengths not in ([None, None], [num_channels] * 2) or (
        name == "digits" and lengths[0]
    ):
        raise InputError(
            "`data.mean` and `data.standard_deviation` must both be null or have "
            f"{num_channels} numbers, one per channel. The digits have their own. "
            f"Received: name={name}, mean={given[0]}, standard_deviation={given[1]}."
        )
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
