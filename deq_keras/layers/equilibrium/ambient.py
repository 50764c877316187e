"""Scopes that a layer finds without being passed them."""

from __future__ import annotations

import contextvars
from typing import Any, Generic, TypeVar

import tensorflow as tf

from deq_keras.graphs import innermost_function, is_being_traced

Scope = TypeVar("Scope")


class AmbientScopes(Generic[Scope]):
    """The entered scopes of one kind, in this thread.

    A function that is compiled outlives the scope in which it is traced. So a scope is
    only valid for calls in the function that entered it, or, entered in eager mode, for
    eager calls.

    Args:
        name: String. Name of the context variable.
    """

    def __init__(self, name: str) -> None:
        self._entered: contextvars.ContextVar[tuple[tuple[Scope, Any], ...]] = (
            contextvars.ContextVar(name, default=())
        )

    def enter(self, scope: Scope) -> None:
        """Makes a scope the innermost one."""
        entry = (scope, innermost_function())
        self._entered.set((*self._entered.get(), entry))

    def leave(self) -> None:
        """Leaves the innermost scope."""
        self._entered.set(self._entered.get()[:-1])

    def innermost(self) -> Scope | None:
        """Returns the innermost scope, wherever it was entered, or `None`."""
        entered = self._entered.get()
        return entered[-1][0] if entered else None

    def entered_eagerly(self) -> Scope | None:
        """Returns the innermost scope if it was entered in eager mode, or `None`."""
        scope, function = (self._entered.get() or ((None, None),))[-1]
        return scope if function is None else None

    def here(self) -> Scope | None:
        """Returns the innermost scope if it is valid for a call made now."""
        entered = self._entered.get()
        if not entered:
            return None
        scope, function = entered[-1]
        if function is None:
            return scope if tf.executing_eagerly() else None
        return scope if is_being_traced(function) else None
