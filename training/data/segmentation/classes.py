"""The classes of a data set, and the label of pixels that belong to none."""

from typing import NamedTuple

# Of pixels that neither the loss nor the scores look at.
IGNORED = 255


class Classes(NamedTuple):
    """Names and colours of the classes, in the order of their labels.

    Attributes:
        names: tuple of strings.
        palette: tuple of `(red, green, blue)`, 0 to 255: the colours of overlays.
    """

    names: tuple
    palette: tuple

    def __len__(self):
        return len(self.names)
