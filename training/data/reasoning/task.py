"""What every reasoning task declares, its examples, and when one is solved.

Training batches and held-out examples are drawn here, without TensorFlow.
"""

import abc
from typing import NamedTuple

import numpy as np

from ...errors import InputError

# The first number of a random key.
_TRAINING, _TEST = 0, 1


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
            from a position to its neighbor.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    difficulty: np.ndarray
    distance: np.ndarray


class Levels(NamedTuple):
    """The sizes, or difficulties, that a task can draw.

    Attributes:
        meaning: String. A noun phrase for the number.
        minimum: Integer. The smallest level.
        maximum: Integer. The largest level.
        step: Integer. The difference between levels. Defaults to `1`.
    """

    meaning: str
    minimum: int
    maximum: int
    step: int = 1

    def __contains__(self, level):
        return level in range(self.minimum, self.maximum + 1, self.step)


class ReasoningTask(abc.ABC):
    """A task whose examples are generated.

    Attributes:
        name: String. The name in configs.
        num_classes: Integer. Classes of a position.
        channels: Integer. Channels of the inputs; `None` if they are tokens.
        num_tokens: Integer. Tokens of the inputs, from 0; `None` if they have channels.
        mean: Float. Mean of inputs with channels; models subtract it. Defaults to
            `0.0`.
        levels: `Levels`.
    """

    name: str
    num_classes: int
    channels: int | None = None
    num_tokens: int | None = None
    mean: float = 0.0
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
            generator: NumPy's `Generator`. It determines all random numbers.
            count: Positive integer. The number of examples.
            level: Integer in `levels`.
            held_out: Boolean. Whether to draw examples that training never draws.
                Tasks with practically unlimited examples ignore it. Defaults to
                `False`.

        Returns:
            `Examples`.

        Raises:
            InputError: If the level does not exist.
        """
        self.check_level(level)
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


def of_sequences(inputs, targets, distance):
    """Returns the `Examples` of sequences of one length; all their positions count.

    Args:
        inputs: Array as in `Examples`.
        targets: Integer array `(batch, length)`.
        distance: Integer. The distance in every example.
    """
    count, length = targets.shape
    return Examples(
        inputs,
        targets.astype("int32"),
        np.ones(targets.shape, "float32"),
        np.full(count, length, "int32"),
        np.full(count, distance, "int32"),
    )


def in_even_batches(arrays, size):
    """Splits arrays into batches of almost equal size, at most `size` each.

    If `size` is at least 3, a batch of one example occurs only if there is just one.

    Returns:
        A list of tuples with a part of each array.
    """
    num_batches = -(-len(arrays[0]) // size)
    return list(
        zip(*(np.array_split(array, num_batches) for array in arrays), strict=True)
    )


def is_solved(predictions, examples):
    """Returns whether the classes at all weighted positions are right, `(batch,)`.

    Args:
        predictions: Integer array `(batch, *positions)` of classes.
        examples: `Examples`.
    """
    is_right = (predictions == examples.targets) | (examples.weights == 0)
    return np.all(is_right, axis=tuple(range(1, is_right.ndim)))


def least_evaluations(distance, reach):
    """Returns the number of cell evaluations that a distance requires.

        ceil(distance / reach)

    A smaller budget cannot transport the information.

    Args:
        distance: Integer or integer array: `Examples.distance`.
        reach: Positive integer. Positions that information travels in an evaluation: 1
            for each convolution of 3 positions on the longest path through the cell.
    """
    return -(-distance // reach)


def training_batches(task, levels, batch_size, seed, steps):
    """Yields a batch of new examples for each step; `dataset.py` adapts it to `fit`.

    A batch has one level, drawn uniformly. It depends only on `seed` and its step, so a
    resumed run sees the same batches as an uninterrupted run.

    Args:
        task: `ReasoningTask`.
        levels: List of levels of the task.
        batch_size: Positive integer.
        seed: Non-negative integer.
        steps: Iterable of non-negative integers, the steps of the training.

    Yields:
        Inputs, targets and weights, as in `Examples`.

    Raises:
        InputError: If a level does not exist.
    """
    for step in steps:
        generator = np.random.default_rng([_TRAINING, seed, step])
        level = levels[generator.integers(len(levels))]
        yield task.examples(generator, batch_size, level)[:3]


def held_out_examples(task, level, count, seed):
    """Returns the `Examples` of a test, which training never draws.

    Args:
        task: `ReasoningTask`.
        level: Integer. A level of the task.
        count: Positive integer. The number of examples.
        seed: Non-negative integer.

    Raises:
        InputError: If the level does not exist.
    """
    generator = np.random.default_rng([_TEST, seed, level])
    return task.examples(generator, count, level, held_out=True)
