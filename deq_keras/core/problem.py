"""A fixed-point problem z = f(z, u)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.graphs import (
    captured_tensors,
    differentiable_by_xla,
)
from deq_keras.core.internals import (
    own_value,
    set_keras_mask,
    stateless_scope,
)
from deq_keras.core.linearization import Linearization, linearize
from deq_keras.core.structure import Nest, zero_padding

# Default of arguments for which `None` is a meaningful value.
_KEEP = object()


class FixedPointFunction:
    """A function f(z, u) that states more about itself than a Python function can.

    A class that inherits from it overrides what applies to its f.
    """

    @property
    def variables(self) -> Sequence[keras.Variable]:
        """The Keras variables that f reads."""
        return ()

    @property
    def reads_keras_mask(self) -> bool:
        """Whether the state carries the problem's mask, as tensors in Keras do."""
        return False

    def __call__(self, state: Nest, injection: Nest) -> Nest:
        """Returns f(z, u), a nest like the state."""
        raise NotImplementedError

    def splitting(self, injection: Nest) -> Any:
        """Returns the `deq_keras.solvers.Splitting` of f, or `None`."""
        return None

    def constant_term(self, injection: Nest) -> Nest | None:
        """Returns f(0, u) if f is affine in z, else `None`."""
        return None


class _PlainFunction(FixedPointFunction):
    """A Python function of a state and an injection."""

    def __init__(self, fn: Callable[[Nest, Nest], Nest]) -> None:
        self.fn = fn

    def __call__(self, state: Nest, injection: Nest) -> Nest:
        return self.fn(state, injection)

    def __repr__(self) -> str:
        return repr(self.fn)


class FixedPointProblem:
    """A fixed-point problem z = f(z, u): a callable `state -> f(state, injection)`.

    The problem owns everything that is constant during a solve. Its methods return new
    problems: for some samples (`rows`), or for other tensors (`bound`, `through`).

    Args:
        fn: Function `(state, injection) -> state`, or a `FixedPointFunction`. If f is
            non-finite where a training step differentiates it, its `variables` and the
            injection get no gradient, but other tensors that `fn` captures get a
            non-finite one.
        injection: Nest of tensors u. Defaults to `()`, an empty injection.
        mask: Boolean tensor `(batch, ...)`, false at positions of the state that are
            padding; they stay zero. Defaults to `None`.
        has_rows: Nest of Booleans like `injection`, true for tensors that have one row
            per sample; `"unknown"` is allowed. Or a function that returns it when it is
            needed. Defaults to `None`: all are unknown, and samples cannot leave the
            batch.
        is_usable: Boolean tensor `(batch,)`. A solver excludes other samples after one
            evaluation, with the status `DIVERGED`. Defaults to `None`, all are usable.

    Example:

    >>> problem = FixedPointProblem(lambda z, u: 0.5 * z + u, tf.ones((1, 3)))
    >>> request = deq_keras.solvers.SolveRequest(tf.zeros((1, 3)), tol=1e-6)
    >>> deq_keras.solvers.Anderson().solve(problem, request).value.numpy().round(3)
    array([[2., 2., 2.]], dtype=float32)
    """

    def __init__(
        self,
        fn: Callable[[Nest, Nest], Nest] | FixedPointFunction,
        injection: Nest = (),
        mask: tf.Tensor | None = None,
        has_rows: Nest | Callable[[], Nest] | None = None,
        is_usable: tf.Tensor | None = None,
    ) -> None:
        if not isinstance(fn, FixedPointFunction):
            fn = _PlainFunction(fn)
        self.fn: FixedPointFunction = fn
        self.injection = injection
        self.mask = mask
        self._has_rows = has_rows
        self.is_usable = is_usable
        self._weights: list[tf.Tensor] | None = None

    @classmethod
    def of(cls, fn: Callable[[Nest], Nest]) -> FixedPointProblem:
        """Returns `fn` if it is a problem, else the problem z = fn(z)."""
        return fn if isinstance(fn, cls) else cls(lambda state, _: fn(state))

    def __call__(self, state: Nest) -> Nest:
        if self.mask is not None and self.fn.reads_keras_mask:
            state = with_keras_mask(state, self.mask)
        # Within this scope, Keras' layers read the problem's tensors in place of their
        # variables, so that gradients reach these tensors.
        if self._weights is not None:
            pairs = list(zip(self.fn.variables, self._weights, strict=True))
            scope = keras.StatelessScope(pairs)
        else:
            scope = contextlib.nullcontext()
        with scope:
            if tf.executing_eagerly():
                value = self.fn(state, self.injection)
            else:
                with differentiable_by_xla():
                    value = self.fn(state, self.injection)
        return value if self.mask is None else zero_padding(value, self.mask)

    @property
    def splitting(self) -> Any:
        """The `deq_keras.solvers.Splitting` of f for the injection, or `None`."""
        return None if self.mask is not None else self.fn.splitting(self.injection)

    @property
    def constant_term(self) -> Nest | None:
        """f(0, u) if f is known to be affine in z, or `None`."""
        constant = self.fn.constant_term(self.injection)
        return None if constant is None else zero_padding(constant, self.mask)

    @property
    def weights(self) -> list[tf.Tensor]:
        """The tensors that f reads as its variables, in the dtype of the variables."""
        if self._weights is not None:
            return self._weights
        scope = stateless_scope()  # `stateless_call` enters one.
        tensors = []
        for variable in self.fn.variables:
            value = None if scope is None else scope.get_current_value(variable)
            if value is None:
                value = own_value(variable)
            if value is None:  # Keras infers shapes before it creates variables.
                value = tf.cast(variable.value, variable.dtype)
            tensors.append(tf.convert_to_tensor(value))
        return tensors

    @property
    def has_rows(self) -> Nest | None:
        """The argument of this name."""
        if callable(self._has_rows):
            self._has_rows = self._has_rows()
        return self._has_rows

    @property
    def knows_rows(self) -> bool:
        """Whether `has_rows` is known for every tensor."""
        has_rows = self.has_rows
        return has_rows is not None and "unknown" not in tree.flatten(has_rows)

    def bound(
        self,
        injection: Nest,
        mask: Any = _KEEP,
        is_usable: Any = _KEEP,
        weights: Any = _KEEP,
    ) -> FixedPointProblem:
        """Returns the same problem for other tensors.

        Args:
            injection: Nest of tensors like the problem's.
            mask: Another mask. Defaults to the problem's.
            is_usable: Another `is_usable`. Defaults to the problem's.
            weights: List of tensors to read instead of the variables. Defaults to the
                tensors that the problem reads.
        """
        problem = copy.copy(self)
        problem.injection = injection
        others = {"mask": mask, "is_usable": is_usable, "_weights": weights}
        for name, value in others.items():
            if value is not _KEEP:
                setattr(problem, name, value)
        return problem

    def rows(self, indices: tf.Tensor) -> FixedPointProblem:
        """Returns the problem of some samples.

        Args:
            indices: Integer tensor `(samples,)`.

        Raises:
            ValueError: If it is unknown which tensors have one row per sample.
        """
        if not self.knows_rows:
            raise ValueError(
                "Selecting samples requires knowing which tensors of the injection "
                "have one row per sample. Give the tensors that `inject` returns one "
                "row per sample: reshape to (tf.shape(inputs)[0], ...), not to "
                f"(-1, ...). Received: has_rows={self.has_rows}."
            )
        injection = tree.map_structure(
            lambda leaf, has_rows: tf.gather(leaf, indices) if has_rows else leaf,
            self.injection,
            self.has_rows,
        )
        mask, is_usable = (
            None if rows is None else tf.gather(rows, indices)
            for rows in (self.mask, self.is_usable)
        )
        return self.bound(injection, mask=mask, is_usable=is_usable)

    def through(self, gate: nonfinite.GradientGate) -> FixedPointProblem:
        """Returns the same problem, whose injection and weights pass through a gate."""
        injection, weights = gate((self.injection, self.weights))
        return self.bound(injection, weights=weights)

    def linearize(self, state: Nest) -> Linearization:
        """Returns the `Linearization` of f at `state`: f and its vector products."""
        return linearize(self, state)._replace(mask=self.mask)

    def sources(self, state: Nest) -> list[tf.Tensor]:
        """Returns all tensors that f reads and that can have a gradient.

        They are the injection, the weights, and tensors that f captures, such as a
        kernel that a cell computed from a weight before the solve.

        Args:
            state: Nest of `(batch, ...)` tensors. A state of f.
        """
        # Keras creates the variables of a layer after it traced `build`.
        values = [own_value(variable) for variable in self.fn.variables]
        is_created = all(value is not None for value in values)
        sources = [self.injection, self.weights if is_created else []]
        sources += captured_tensors(self, state)
        # A tensor that is mentioned twice would get its gradient twice.
        unique = {id(leaf): leaf for leaf in nonfinite.differentiable(sources)}
        return list(unique.values())


def with_keras_mask(state: Nest, mask: tf.Tensor) -> Nest:
    """Returns a state that carries a mask for layers such as `MultiHeadAttention`.

    Args:
        state: Nest of `(batch, ...)` tensors.
        mask: Boolean tensor `(batch, ...)`.
    """

    def attach(leaf: tf.Tensor) -> tf.Tensor:
        if leaf.shape.rank <= mask.shape.rank:
            return leaf
        # The state belongs to the solver. Other readers must not see the mask.
        leaf = tf.identity(leaf)
        set_keras_mask(leaf, mask)
        return leaf

    return tree.map_structure(attach, state)
