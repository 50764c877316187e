"""The budget and the tolerance of the solves of a layer outside of training."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from deq_keras.core.request import as_max_iter, as_tol
from deq_keras.solvers import FixedPointSolver

if TYPE_CHECKING:
    from deq_keras.layers.equilibrium.solve_scope import SolveScope


class _Entry(NamedTuple):
    """A scope that was entered and not left."""

    scope: SolveScope
    thread: int
    is_eager: bool

    @property
    def sets_variables(self) -> bool:
        """Whether the scope changes what compiled functions read."""
        numbers = (self.scope.max_iter, self.scope.tol)
        return self.is_eager and numbers != (None, None)


class Budget:
    """The numbers of a layer's solves, and the scopes that set them.

    A call overrides a `SolveScope`, an inner scope an outer one, and a scope the
    solver of the layer. Compiled functions read two variables at each call, so that new
    numbers need no new trace.

    Args:
        max_iter: Int64 `keras.Variable`. TensorFlow keeps int32 variables in the memory
            of the host, where a function that XLA compiled for a GPU cannot read them.
        tol: Float32 `keras.Variable`. 0 without a tolerance.
    """

    def __init__(self, max_iter: Any, tol: Any) -> None:
        self.max_iter = max_iter
        self.tol = tol
        self._solver = FixedPointSolver()
        self._entered: list[_Entry] = []

    def set_solver(self, solver: FixedPointSolver) -> None:
        """Takes the numbers of a new solver, within a scope too."""
        self._solver = solver
        self._assign()

    def enter(self, scope: SolveScope) -> None:
        """Applies a scope to the calls of the layer, until it leaves."""
        entry = _Entry(scope, threading.get_ident(), tf.executing_eagerly())
        for other in self._entered:
            if other.thread != entry.thread and (
                other.sets_variables and entry.sets_variables
            ):
                warnings.warn(
                    "Another thread is within a SolveScope of this layer. Compiled "
                    "functions, such as that of predict, read the budget from a "
                    "variable that all threads share: the last scope sets it. Call "
                    "the model itself, pass the budget to the call, or give each "
                    f"thread a model of its own. Received: max_iter={scope.max_iter}, "
                    f"tol={scope.tol}; in the other thread max_iter="
                    f"{other.scope.max_iter}, tol={other.scope.tol}.",
                    stacklevel=3,
                )
                break
        self._entered.append(entry)
        if entry.is_eager:
            self._assign()

    def leave(self, scope: SolveScope) -> None:
        """Ends the innermost entry of a scope in this thread."""
        thread = threading.get_ident()
        for i, entry in reversed([*enumerate(self._entered)]):
            if entry.scope is scope and entry.thread == thread:
                del self._entered[i]
                if entry.is_eager:
                    self._assign()
                break

    @property
    def scope(self) -> SolveScope | None:
        """The innermost scope to which a call belongs that is made now, or `None`.

        A function that is traced in an eager scope outlives it, and reads variables.
        """
        thread, is_eager = threading.get_ident(), tf.executing_eagerly()
        for entry in reversed(self._entered):
            if (entry.thread, entry.is_eager) == (thread, is_eager):
                return entry.scope
        return None

    def read(self, max_iter: Any = None, tol: Any = None) -> tuple[Any, Any]:
        """Returns the budget and the tolerance of a call.

        Args:
            max_iter: The call argument, or `None`.
            tol: The call argument, or `None`.

        Returns:
            A positive integer or an int32 scalar tensor, and a float, a scalar tensor
            or `None`.
        """
        if max_iter is not None or tol is not None:
            max_iter, tol = checked(max_iter, tol)
        is_eager, scope = tf.executing_eagerly(), self.scope
        if scope is not None:
            thread = threading.get_ident()
            entries = [entry for entry in self._entered if entry.thread == thread]
            max_iter, tol = _innermost(entries, is_eager, max_iter, tol)
        if is_eager or (scope is not None and scope.is_pure):
            # A file has the numbers of the solver, in whatever scope it is written.
            return self._with_solver(max_iter, tol)
        if max_iter is None:
            max_iter = tf.cast(self.max_iter.value, tf.int32)
        return max_iter, self.tol.value if tol is None else tol

    def _with_solver(self, max_iter: Any, tol: Any) -> tuple[Any, Any]:
        """Returns numbers. The solver replaces `None`."""
        max_iter = self._solver.max_iter if max_iter is None else max_iter
        return max_iter, self._solver.tol if tol is None else tol

    def _assign(self) -> None:
        """Assigns the numbers that compiled functions read."""
        numbers = _innermost(self._entered, is_eager=True)
        max_iter, tol = self._with_solver(*numbers)
        with tf.init_scope():
            self.max_iter.assign(max_iter)
            self.tol.assign(0.0 if tol is None else tol)


def _innermost(
    entries: list[_Entry], is_eager: bool, max_iter: Any = None, tol: Any = None
) -> tuple[Any, Any]:
    """Returns numbers. The innermost scopes replace `None`."""
    for entry in reversed(entries):
        if entry.is_eager == is_eager:
            max_iter = entry.scope.max_iter if max_iter is None else max_iter
            tol = entry.scope.tol if tol is None else tol
    return number(max_iter), number(tol)


def checked(max_iter: Any = None, tol: Any = None) -> tuple[Any, Any]:
    """Returns the arguments of a call; numbers if their values are known."""
    return as_max_iter(number(max_iter)), as_tol(number(tol))


def number(value: Any) -> Any:
    """Returns the number in a tensor if it is known; other values are unchanged."""
    if value is None or not tf.is_tensor(value):
        return value
    known = tf.get_static_value(value)
    return value if known is None or known.ndim else known.item()
