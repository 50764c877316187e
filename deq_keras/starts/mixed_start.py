"""Several starts, one drawn for each sample."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras import serialization
from deq_keras.checks import check_share
from deq_keras.draws import derived_seed
from deq_keras.serialization import Config
from deq_keras.starts.names import SHORT_NAMES, UNMIXED
from deq_keras.starts.start import Start
from deq_keras.structure import Nest, where_rows


@keras.saving.register_keras_serializable(package="deq_keras")
class MixedStart(Start):
    """Starts every sample as one of several starts says, drawn by their shares.

    Without a seed, outside of training, the first of them counts for all.

    Args:
        starts: Sequence of starts: names, config dicts or instances. Defaults to
            `("cell", "normal")`.
        shares: Sequence of as many floats in [0, 1] that add up to one. `None`: equal
            shares. Defaults to `None`.

    Example:

    >>> start = deq_keras.starts.MixedStart(["cell", "normal"], [0.75, 0.25])

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """

    def __init__(
        self,
        starts: Sequence[Any] = ("cell", "normal"),
        shares: Sequence[float] | None = None,
    ) -> None:
        if not isinstance(starts, list | tuple) or not starts:
            raise ValueError(
                f"`starts` must be a sequence of starts. Received: starts={starts!r}."
            )
        self.starts = [
            serialization.get(start, Start, UNMIXED, "start", SHORT_NAMES)
            for start in starts
        ]
        self.shares = _checked_shares(shares, len(self.starts))
        initializers = [s.initializer for s in self.starts if s.initializer is not None]
        if len(initializers) > 1:
            raise ValueError(
                "One of `starts` at most may be learned: the layer has weights for "
                f"one. Received: starts={starts!r}."
            )
        self.initializer = initializers[0] if initializers else None
        self.is_random = len(self.starts) > 1 or self.starts[0].is_random

    def __call__(
        self,
        state: Nest,
        seed: tf.Tensor | None = None,
        learned: Sequence[tf.Tensor] | None = None,
    ) -> Nest:
        first = None if seed is None else derived_seed(seed, 1)
        result = self.starts[0](state, first, learned)
        if seed is None:
            return result
        batch_size = tf.shape(tree.flatten(state)[0])[0]
        draw = tf.random.stateless_uniform([batch_size], derived_seed(seed, 0))
        for i in range(1, len(self.starts)):
            other = self.starts[i](state, derived_seed(seed, i + 1), learned)
            result = where_rows(draw >= math.fsum(self.shares[:i]), other, result)
        return result

    @property
    def random_part(self) -> Start | None:
        drawn = [
            (start, share)
            for start, share in zip(self.starts, self.shares, strict=True)
            if start.is_random and share > 0
        ]
        if not drawn:
            return None
        total = math.fsum(share for _, share in drawn)
        return MixedStart([s for s, _ in drawn], [share / total for _, share in drawn])

    def get_config(self) -> Config:
        return {
            "starts": [keras.saving.serialize_keras_object(s) for s in self.starts],
            "shares": self.shares,
        }


def _checked_shares(shares: Sequence[float] | None, size: int) -> list[float]:
    if shares is None:
        return [1.0 / size] * size
    if not isinstance(shares, list | tuple) or len(shares) != size:
        raise ValueError(
            f"`shares` must have one number for each of the {size} starts. Received: "
            f"shares={shares!r}."
        )
    shares = [check_share(f"shares[{i}]", share) for i, share in enumerate(shares)]
    if not math.isclose(math.fsum(shares), 1.0, abs_tol=1e-6):
        raise ValueError(f"`shares` must add up to one. Received: shares={shares!r}.")
    return shares
