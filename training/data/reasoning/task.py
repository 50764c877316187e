"""What every reasoning task says of itself, and when an example is solved."""

import abc
import numbers
from typing import NamedTuple

import numpy as np

from ...errors import InputError


class Examples(NamedTuple):
    """Examples of one level, and so of one shape.

    Attributes:
        inputs: float32 array `(batch, *positions, channels)`, or int32 array `(batch,
            *positions)` of tokens.
        targets: int32 array `(batch, *positions)`, the class of each position.
        weights: float32 array `(batch, *positions)`: 1 where loss and scores count a
            position, 0 elsewhere.
        difficulty: int32 array `(batch,)`. How hard an example is, as its task counts.
        distance: int32 array `(batch,)`. How far information has to travel, in steps
            from a position to its neighbour.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    difficulty: np.ndarray
    distance: np.ndarray


class Levels(NamedTuple):
    """The sizes, or difficulties, that a task can draw.

    Attributes:
        meaning: str. What the number is.
        minimum: int. The smallest.
        maximum: int. The largest.
        step: int. From one to the next. Defaults to `1`.
    """

    meaning: str
    minimum: int
    maximum: int
    step: int = 1

    def __contains__(self, level):
        return _is_integer(level) and level in range(
            self.minimum, self.maximum + 1, self.step
        )


class ReasoningTask(abc.ABC):
    """A task of which examples are made up as many as one likes.

    Attributes:
        name: str. As configs say it.
        num_classes: int. Classes of a position.
        channels: int. Channels of the inputs; `None` if they are tokens.
        num_tokens: int. Tokens of the inputs, from 0; `None` if they have channels.
        levels: `Levels`.
    """

    name: str
    num_classes: int
    channels: int | None = None
    num_tokens: int | None = None
    levels: Levels

    @abc.abstractmethod
    def positions(self, level):
        """Returns the shape of the positions of a level, a tuple."""

    def input_shape(self, level):
        """Returns the shape of the input of one example of a level, a tuple."""
        channels = () if self.channels is None else (self.channels,)
        return (*self.positions(level), *channels)

    def examples(self, generator, count, level, held_out=False):
        """Draws examples.

        Args:
            generator: NumPy's `Generator`. All that is random follows from it.
            count: int >= 1. How many.
            level: int in `levels`.
            held_out: bool. Whether of those that training never sees. Tasks with more
                examples than anyone can draw do not part them, and draw the same.
                Defaults to `False`.

        Returns:
            The `Examples`.

        Raises:
            InputError: if there is no such level, or `count` is no positive integer.
        """
        self.check_level(level)
        check_count("count", count)
        return self._draw(generator, count, level, held_out)

    def check_level(self, level):
        """Raises `InputError` unless examples of a level can be drawn."""
        if level not in self.levels:
            meaning, minimum, maximum, step = self.levels
            steps = "" if step == 1 else f" in steps of {step}"
            raise InputError(
                f"A level of the task `{self.name}` is {meaning}, an integer from "
                f"{minimum} to {maximum}{steps}. Received: level={level!r}."
            )

    @abc.abstractmethod
    def _draw(self, generator, count, level, held_out):
        """Returns the `Examples`."""


def check_count(name, value):
    """Raises `InputError` unless a value is a positive integer."""
    if not _is_integer(value) or value < 1:
        raise InputError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}."
        )


def _is_integer(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def of_sequences(inputs, targets, distance):
    """Returns the `Examples` of sequences of one length, all positions of which count.

    Args:
        inputs: array of `Examples`, of its dtype.
        targets: int array `(batch, length)`.
        distance: int. Of all examples.
    """
    count, length = targets.shape
    return Examples(
        inputs,
        targets.astype("int32"),
        np.ones(targets.shape, "float32"),
        np.full(count, length, "int32"),
        np.full(count, distance, "int32"),
    )


def solved(answers, examples):
    """Returns whether the answers of all positions that count are right, `(batch,)`.

    Args:
        answers: int array `(batch, *positions)` of classes.
        examples: the `Examples`.
    """
    is_right = (answers == examples.targets) | (examples.weights == 0)
    return np.all(is_right, axis=tuple(range(1, is_right.ndim)))


def least_evaluations(distance, reach):
    """Returns how many evaluations of a cell a distance takes at the least.

        ceil(distance / reach)

    No budget below it lets the information arrive.

    Args:
        distance: int, or int array: `Examples.distance`.
        reach: int >= 1. By how many positions information travels in an evaluation: 1
            for each convolution of 3 positions on the longest way through the cell.

    Raises:
        InputError: if `reach` is no positive integer.
    """
    check_count("reach", reach)
    return -(-distance // reach)
