"""Scopes that apply to a layer's calls without being passed as arguments."""

from __future__ import annotations

import contextvars
from typing import Any, Generic, TypeVar

import tensorflow as tf

from deq_keras.core.graphs import innermost_function, is_being_traced

Scope = TypeVar("Scope")


class AmbientScopes(Generic[Scope]):
    """The entered scopes of one kind, in this thread.

    A compiled function outlives the scope in which it was traced. Therefore a scope
    that a function enters is valid only for calls in that function, and a scope entered
    in eager mode only for eager calls.

    Args:
        name: String. Name of the context variable.
    """

    def __init__(self, name: str) -> None:
        self._entered: contextvars.ContextVar[tuple[tuple[Scope, Any], ...]] = (
            contextvars.ContextVar(name, default=())
        )

    def enter(self, scope: Scope) -> None:
        """Enters a scope, which becomes the innermost one."""
        entry = (scope, innermost_function())
        self._entered.set((*self._entered.get(), entry))

    def leave(self) -> None:
        """Leaves the innermost scope."""
        self._entered.set(self._entered.get()[:-1])

    def entered(self) -> list[Scope]:
        """Returns all scopes, the innermost first."""
        return [scope for scope, _ in reversed(self._entered.get())]

    def valid(self) -> list[Scope]:
        """Returns the scopes that are valid for a call now, the innermost first."""
        is_eager = tf.executing_eagerly()
        return [
            scope
            for scope, function in reversed(self._entered.get())
            if (is_eager if function is None else is_being_traced(function))
        ]
