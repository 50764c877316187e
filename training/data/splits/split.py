"""Labelled images in a fixed order, wherever they are."""

import abc

from ...errors import InputError


class Split(abc.ABC):
    """Labelled images in a fixed order, and what streams make of them.

    A split streams entries, each of which stands for an example, an image and its
    label: so what is large need not be read before it is shuffled.

    Args:
        transform: what becomes of the examples. It has the function
            `evaluated(*example)`, which prepares them for evaluation,
            `augmented(*example, config, key)`, which changes them at random for
            training, the bool `of_batches`, whether both take batches of examples, and
            the bool `drops_remainder`, whether training leaves out the smaller batch
            that may end an epoch.
    """

    def __init__(self, transform):
        self.transform = transform

    @property
    def image_shape(self):
        """`(height, width, channels)` of the images that the streams hold."""
        return self.transform.image_shape

    @abc.abstractmethod
    def __len__(self):
        """Returns the number of examples."""

    @abc.abstractmethod
    def part(self, start, stop):
        """Returns the split of the examples from `start` to before `stop`."""

    @abc.abstractmethod
    def in_order(self):
        """Returns the dataset of the entries, tuples, in their order."""

    @abc.abstractmethod
    def shuffled(self, key):
        """Returns it in an order that is a function of the int64 `(2,)` key."""

    @abc.abstractmethod
    def loader(self):
        """Returns the function of the parts of an entry that returns the example."""


def first(split, count, name):
    """Returns the first `count` examples of a split, all of them for `None`.

    Args:
        split: a `Split`.
        count: optional int.
        name: str. The name of `count` in the config.

    Raises:
        InputError: if there are fewer.
    """
    if count is not None and count > len(split):
        raise InputError(
            f"`data.{name}` must be at most {len(split)}, the number of images there "
            f"are. Received: {name}={count}."
        )
    return split.part(0, count)
