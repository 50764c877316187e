"""Labelled images in memory, in three splits."""

from typing import NamedTuple

from training.data import cifar10, digits
from training.data.split import Split
from training.errors import InputError


class ImageData(NamedTuple):
    """The images of one experiment.

    Attributes:
        training: the `Split` to learn from.
        validation: the `Split` that is evaluated after each epoch.
        test: the `Split` that tables are made of.
        num_classes: how many labels there are.
        mean: tuple, what normalisation subtracts from the pixels of each channel.
        standard_deviation: tuple, by what it then divides them.
    """

    training: Split
    validation: Split
    test: Split
    num_classes: int
    mean: tuple
    standard_deviation: tuple


def load(config):
    """Returns the `ImageData` of a `DataConfig`.

    Raises:
        InputError: if the data cannot be read, or has fewer images than asked for.
    """
    if config.name == "digits":
        if config.directory is not None:
            raise InputError(
                "The digits are embedded and take no `data.directory`. "
                f"Received: directory={config.directory!r}."
            )
        source, (training, test) = digits, digits.load()
    else:
        source, (training, test) = cifar10, cifar10.load(config.directory)
    training = _first(training, config.train_examples, "train_examples")
    test = _first(test, config.test_examples, "test_examples")
    training, validation = _held_out(training, config.validation_examples)
    return ImageData(
        training=training,
        validation=validation or test,
        test=test,
        num_classes=source.NUM_CLASSES,
        mean=source.MEAN,
        standard_deviation=source.STANDARD_DEVIATION,
    )


def _first(split, count, name):
    if count is not None and count > len(split):
        raise InputError(
            f"`data.{name}` must be at most {len(split)}, the number of images there "
            f"are. Received: {name}={count}."
        )
    return split.part(0, count)


def _held_out(training, count):
    if count >= len(training):
        raise InputError(
            f"`data.validation_examples` must be less than {len(training)}, the number "
            f"of training images. Received: validation_examples={count}."
        )
    stop = len(training) - count
    return training.part(0, stop), training.part(stop, None) if count else None
