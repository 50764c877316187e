"""A function of states of which some samples can be left out."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from deq_keras.structure import Nest


class RowFunction:
    """A function of a state that can become that of some of the samples.

    Args:
        fn: Function `(state, injection) -> state`.
        injection: Nest of tensors.
        rows_of: Function of an injection and an int32 tensor `(samples,)` that returns
            the injection of these samples.
    """

    def __init__(
        self,
        fn: Callable[[Nest, Nest], Nest],
        injection: Nest,
        rows_of: Callable[[Nest, tf.Tensor], Nest],
    ) -> None:
        self.fn = fn
        self.injection = injection
        self.rows_of = rows_of

    def __call__(self, state: Nest) -> Nest:
        return self.fn(state, self.injection)

    def with_injection(self, injection: Nest) -> RowFunction:
        """Returns the function with another injection."""
        return RowFunction(self.fn, injection, self.rows_of)
