"""The number of steps of a truncated gradient: fixed, or drawn in each solve."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from deq_keras.core.checks import check_integer, is_finite_number
from deq_keras.core.random import integer, uniform

# A number, the name of a distribution, or its weights.
NumSteps: TypeAlias = int | str | Sequence[float]

UNIFORM = "uniform"
LOG_UNIFORM = "log_uniform"


class StepCounts(NamedTuple):
    """A distribution of the number of steps.

    Attributes:
        smallest: Integer. The smallest number.
        distribution: Tuple of floats, the relative probabilities of `smallest`,
            `smallest + 1`, ...; or the name of a distribution over all numbers up to
            the limit.
    """

    smallest: int
    distribution: tuple[float, ...] | str

    @property
    def is_random(self) -> bool:
        return isinstance(self.distribution, str) or len(self.distribution) > 1

    @property
    def may_exceed_zero(self) -> bool:
        if isinstance(self.distribution, str) or self.smallest > 0:
            return True
        return any(weight > 0 for weight in self.distribution[1:])

    @property
    def fewest(self) -> int:
        """The smallest number that may be drawn."""
        if isinstance(self.distribution, str):
            return self.smallest
        is_possible = [weight > 0 for weight in self.distribution]
        return self.smallest + is_possible.index(True)

    @property
    def needed(self) -> int:
        """The smallest limit that is valid: the largest number or, for a named
        distribution, the smallest."""
        is_named = isinstance(self.distribution, str)
        return self.smallest + (0 if is_named else len(self.distribution) - 1)

    def largest(self, room: int) -> int:
        """Returns the largest possible number if the limit is `room`."""
        return room if isinstance(self.distribution, str) else self.needed

    def draw(self, room: int | tf.Tensor, seed: tf.Tensor) -> int | tf.Tensor:
        """Returns a number of steps.

        Args:
            room: Integer, or int32 scalar tensor. The largest number.
            seed: Int32 tensor of shape `(2,)`.
        """
        if not self.is_random:
            return self.smallest
        if self.distribution == UNIFORM:
            return integer(seed, self.smallest, room + 1)
        draw = uniform((), seed)
        if isinstance(self.distribution, str):
            size = tf.cast(room - self.smallest + 2, draw.dtype)
            steps = self.smallest - 1 + tf.cast(tf.pow(size, draw), tf.int32)
            return tf.minimum(steps, room)  # A power may be rounded up to its base.
        *bounds, total = itertools.accumulate(self.distribution)
        is_beyond = draw * total >= tf.constant(bounds, draw.dtype)
        return self.smallest + tf.reduce_sum(tf.cast(is_beyond, tf.int32))


def between(fewest: int, most: int) -> StepCounts:
    """Returns the uniform distribution of the numbers from `fewest` to `most`."""
    return StepCounts(fewest, (1.0,) * (most - fewest + 1))


def parse(name: str, steps: Any, smallest: int) -> StepCounts:
    """Returns the `StepCounts` of an argument.

    Args:
        name: String. The argument's name.
        steps: Integer >= `smallest`; `"uniform"` or `"log_uniform"`; or a sequence of
            weights >= 0, not all zero, of `smallest`, `smallest + 1`, ...
        smallest: Integer. The smallest allowed number.

    Raises:
        ValueError: If `steps` is anything else.
    """
    if isinstance(steps, str) and steps in (UNIFORM, LOG_UNIFORM):
        return StepCounts(smallest, steps)
    if isinstance(steps, list | tuple):
        return StepCounts(smallest, _check_weights(name, steps))
    if isinstance(steps, str) or steps is None:
        raise ValueError(
            f"`{name}` must be an integer >= {smallest}, 'uniform', 'log_uniform' or a "
            f"sequence of weights. Received: {name}={steps!r}."
        )
    return StepCounts(check_integer(name, steps, smallest), (1.0,))


def _check_weights(name: str, weights: Sequence[Any]) -> tuple[float, ...]:
    if (
        not all(map(is_finite_number, weights))
        or not all(weight >= 0 for weight in weights)
        or not math.fsum(weights) > 0
    ):
        raise ValueError(
            f"The weights in `{name}` must be numbers >= 0, not all zero. Received: "
            f"{name}={weights!r}."
        )
    return tuple(map(float, weights))
