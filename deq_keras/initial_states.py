"""The state from which the solve of a sample starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import serialization
from deq_keras.core.checks import check_fraction, check_positive
from deq_keras.core.random import fold_in, normal_like, uniform
from deq_keras.core.serialization import Config, Configured, arguments_of
from deq_keras.core.structure import Nest, where_rows

__all__ = [
    "ALL_OBJECTS",
    "FromCell",
    "InitialState",
    "Mixed",
    "Normal",
    "Zeros",
    "deserialize",
    "get",
    "serialize",
]

Seed: TypeAlias = tf.Tensor | None


class InitialState(Configured):
    """Base class of the initial states of a solve.

    An initial state holds only its configuration and can be saved with `get_config`.
    Several layers can share it. Subclasses implement `__call__`.

    Attributes:
        is_random: Boolean. Whether it is drawn.

    Call arguments:
        state: Nest of `(batch, ...)` tensors. The cell's own initial state.
        seed: Int32 tensor of shape `(2,)`. Seeds every draw. `None` outside of training
            unless the user requests a draw; then nothing is drawn.

    Returns:
        A nest like `state`.
    """

    is_random = False

    @property
    def random_part(self) -> InitialState | None:
        """The distribution of the further restarts of a sample, or `None`.

        All samples share its draws. Its input is zeros instead of the cell's initial
        state.
        """
        return self if self.is_random else None

    def __call__(self, state: Nest, seed: Seed = None) -> Nest:
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="deq_keras")
class FromCell(InitialState):
    """Starts from the cell's own `initial_state`, which may depend on the injection.

    Example:

    >>> initial_state = deq_keras.initial_states.FromCell()
    """

    def __call__(self, state: Nest, seed: Seed = None) -> Nest:
        return state


@keras.saving.register_keras_serializable(package="deq_keras")
class Zeros(InitialState):
    """Starts from zero, regardless of the cell.

    Example:

    >>> initial_state = deq_keras.initial_states.Zeros()
    """

    def __call__(self, state: Nest, seed: Seed = None) -> Nest:
        return tree.map_structure(tf.zeros_like, state)


@keras.saving.register_keras_serializable(package="deq_keras")
class Normal(InitialState):
    """Starts from N(0, stddev^2), drawn independently for each entry of the state.

    Training from random states teaches a model to reach the same result from any state.
    Without a seed, outside of training, it is the cell's own initial state.

    Args:
        stddev: Positive float. Defaults to `1.0`.

    Example:

    >>> initial_state = deq_keras.initial_states.Normal(stddev=0.3)

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """

    is_random = True

    def __init__(self, stddev: float = 1.0) -> None:
        self.stddev = check_positive("stddev", stddev)

    def __call__(self, state: Nest, seed: Seed = None) -> Nest:
        if seed is None:
            return state
        return tree.map_structure(
            lambda leaf: tf.constant(self.stddev, leaf.dtype) * leaf,
            normal_like(state, seed),
        )

    def get_config(self) -> Config:
        return arguments_of(self, Normal)


# A mixture combines these, but no other mixture.
_UNMIXED = (FromCell, Zeros, Normal)
_SHORT_NAMES = {"cell": FromCell}


@keras.saving.register_keras_serializable(package="deq_keras")
class Mixed(InitialState):
    """Draws one of several initial states for each sample.

    Without a seed, outside training, all samples use the first of them.

    Args:
        initial_states: Sequence of names, config dicts or instances. Defaults to
            `("cell", "normal")`.
        fractions: Sequence of floats in [0, 1] that add up to one, one per initial
            state. Defaults to `None`, equal fractions.

    Example:

    >>> initial_state = deq_keras.initial_states.Mixed(["cell", "normal"], [0.75, 0.25])

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """

    def __init__(
        self,
        initial_states: Sequence[Any] = ("cell", "normal"),
        fractions: Sequence[float] | None = None,
    ) -> None:
        if not isinstance(initial_states, list | tuple) or not initial_states:
            raise ValueError(
                "`initial_states` must be a sequence of initial states. Received: "
                f"initial_states={initial_states!r}."
            )
        self.initial_states = [
            serialization.get(
                one, InitialState, _UNMIXED, "initial state", _SHORT_NAMES
            )
            for one in initial_states
        ]
        self.fractions = _check_fractions(fractions, len(self.initial_states))
        self.is_random = (
            len(self.initial_states) > 1 or self.initial_states[0].is_random
        )

    def __call__(self, state: Nest, seed: Seed = None) -> Nest:
        first = fold_in(seed, 1)
        result = self.initial_states[0](state, first)
        if seed is None:
            return result
        batch_size = tf.shape(tree.flatten(state)[0])[0]
        draw = uniform([batch_size], fold_in(seed, 0))
        for i in range(1, len(self.initial_states)):
            other = self.initial_states[i](state, fold_in(seed, i + 1))
            result = where_rows(draw >= math.fsum(self.fractions[:i]), other, result)
        return result

    @property
    def random_part(self) -> InitialState | None:
        drawn = [
            (one, fraction)
            for one, fraction in zip(self.initial_states, self.fractions, strict=True)
            if one.is_random and fraction > 0
        ]
        if not drawn:
            return None
        total = math.fsum(fraction for _, fraction in drawn)
        return Mixed([one for one, _ in drawn], [f / total for _, f in drawn])

    def get_config(self) -> Config:
        return arguments_of(self, Mixed)


def _check_fractions(fractions: Sequence[float] | None, size: int) -> list[float]:
    if fractions is None:
        return [1.0 / size] * size
    if not isinstance(fractions, list | tuple) or len(fractions) != size:
        raise ValueError(
            f"`fractions` must have one number for each of the {size} initial states. "
            f"Received: fractions={fractions!r}."
        )
    fractions = [check_fraction(f"fractions[{i}]", f) for i, f in enumerate(fractions)]
    if not math.isclose(math.fsum(fractions), 1.0, abs_tol=1e-6):
        raise ValueError(
            f"`fractions` must add up to one. Received: fractions={fractions!r}."
        )
    return fractions


ALL_OBJECTS = (*_UNMIXED, Mixed)


def get(identifier: str | Config | InitialState) -> InitialState:
    """Returns an initial state from a name, a config dict or an instance.

    Args:
        identifier: `"cell"`, `"zeros"`, `"normal"`, `"mixed"`; a dict like
            `{"class_name": "Normal", "stddev": 0.3}` or what `serialize` returns; or an
            `InitialState`, which is returned unchanged.

    Raises:
        ValueError: For an unknown name or argument.
    """
    return serialization.get(
        identifier, InitialState, ALL_OBJECTS, "initial state", _SHORT_NAMES
    )


def serialize(initial_state: InitialState) -> Config:
    """Returns the config dict of an initial state."""
    return keras.saving.serialize_keras_object(initial_state)


def deserialize(config: str | Config) -> InitialState:
    """Returns the initial state of a config dict."""
    return get(config)
