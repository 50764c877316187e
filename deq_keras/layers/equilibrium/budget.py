"""The budgets and the tolerances of the solves of a layer."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from deq_keras.core.internals import is_compiled_by_xla, keras_export_format
from deq_keras.core.request import as_max_iter, as_tol
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium.controls import Controls
from deq_keras.solvers import FixedPointSolver, LoopOptions, SolveRequest

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
        controls: The `Controls` of the layer.
    """

    def __init__(self, controls: Controls) -> None:
        self._max_iter = controls.create("max_iter", 1, "int64", is_read_by_files=True)
        # Without a tolerance, a number that no residual reaches.
        self._tol = controls.create("tol", -1.0, "float32", is_read_by_files=True)
        self._solver = FixedPointSolver()
        self._entries: list[_Entry] = []

    def set_solver(self, solver: FixedPointSolver) -> None:
        """Takes the numbers of a new solver, within a scope too."""
        self._solver = solver
        self._assign()

    def enter(self, scope: SolveScope) -> None:
        """Applies a scope to the calls of the layer, until it leaves."""
        entry = _Entry(scope, threading.get_ident(), tf.executing_eagerly())
        for other in self._entries:
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
        self._entries.append(entry)
        if entry.is_eager:
            self._assign()

    def leave(self, scope: SolveScope) -> None:
        """Ends the innermost entry of a scope in this thread."""
        thread = threading.get_ident()
        for i, entry in reversed([*enumerate(self._entries)]):
            if entry.scope is scope and entry.thread == thread:
                del self._entries[i]
                if entry.is_eager:
                    self._assign()
                break

    @property
    def scope(self) -> SolveScope | None:
        """The innermost scope to which a call belongs that is made now, or `None`.

        A function that is traced in an eager scope outlives it, and reads variables.
        """
        thread, is_eager = threading.get_ident(), tf.executing_eagerly()
        for entry in reversed(self._entries):
            if (entry.thread, entry.is_eager) == (thread, is_eager):
                return entry.scope
        return None

    @property
    def is_in_file(self) -> bool:
        """Whether a call that is traced now belongs to a file that is written."""
        scope = self.scope
        return scope is not None and scope.is_pure

    def request(
        self, state: Nest, max_iter: Any, tol: Any, scope: SolveScope | None
    ) -> SolveRequest:
        """Returns the request of a call outside of training.

        Args:
            state: Nest of tensors. The initial state.
            max_iter: The call argument, or `None`.
            tol: The call argument, or `None`.
            scope: The scope of the call, or `None`; see `scope`.
        """
        if max_iter is not None or tol is not None:
            max_iter, tol = as_numbers(max_iter, tol)
        is_eager, solver = tf.executing_eagerly(), self._solver
        is_set = max_iter is not None
        if scope is not None:
            is_set = is_set or scope.max_iter is not None
            thread = threading.get_ident()
            entries = [entry for entry in self._entries if entry.thread == thread]
            max_iter, tol = _innermost(entries, is_eager, max_iter, tol)
        if is_eager or (scope is not None and scope.is_pure):
            # A file has the numbers of the solver, in whatever scope it is written.
            max_iter = solver.max_iter if max_iter is None else max_iter
            tol = solver.tol if tol is None else tol
        else:
            if max_iter is None:
                max_iter = tf.cast(self._max_iter.value, tf.int32)
            tol = self._tol.value if tol is None else tol
        records_trace, limit, capacity = scope is not None, None, None
        if not is_eager:
            limit = self._limit_of_keras_file()
            if is_compiled_by_xla():
                # XLA does not know the variable of the budget when it compiles.
                capacity = solver.max_iter
                records_trace = records_trace and is_set
        loop = LoopOptions(
            limit, records_trace, allows_arrays=limit is None, capacity=capacity
        )
        return SolveRequest(state, max_iter, tol, loop=loop)

    def _limit_of_keras_file(self) -> int | None:
        """Returns a limit of the budget if Keras' `model.export` traces the call."""
        file_format = keras_export_format()
        if file_format in ("onnx", "openvino"):
            raise ValueError(
                "Keras' `model.export` cannot write a DEQ layer to ONNX or OpenVINO: "
                "its converter drops the shapes of loops, and multiplies in place of "
                "`where`. Use `deq_keras.serving.export_onnx(model, path)`, whose "
                f"files OpenVINO reads, too. Received: format={file_format!r}."
            )
        # LiteRT's own operators need static shapes.
        return self._solver.max_iter if file_format == "litert" else None

    def solver_of_training(self, max_iter: Any, tol: Any) -> FixedPointSolver:
        """Returns the solver of a training step whose call sets numbers."""
        max_iter, tol = as_numbers(max_iter, tol)
        config = self._solver.get_config()
        for name, value in (("max_iter", max_iter), ("tol", tol)):
            if value is None:
                continue
            config[name] = value
            if tf.is_tensor(value):
                raise ValueError(
                    f"In training, `{name}` must be a number, because gradients need "
                    "the largest number of steps when the function is traced. Use "
                    "`max_iter_jitter` of DEQ to vary the budget. Received: "
                    f"{name}={value!r}."
                )
        return self._solver.from_config(config)

    def _assign(self) -> None:
        """Assigns the numbers that compiled functions read."""
        max_iter, tol = _innermost(self._entries, is_eager=True)
        max_iter = self._solver.max_iter if max_iter is None else max_iter
        tol = self._solver.tol if tol is None else tol
        with tf.init_scope():
            self._max_iter.assign(max_iter)
            self._tol.assign(-1.0 if tol is None else tol)


def _innermost(
    entries: list[_Entry], is_eager: bool, max_iter: Any = None, tol: Any = None
) -> tuple[Any, Any]:
    """Returns numbers. The innermost scopes replace `None`."""
    for entry in reversed(entries):
        if entry.is_eager == is_eager:
            max_iter = entry.scope.max_iter if max_iter is None else max_iter
            tol = entry.scope.tol if tol is None else tol
    return _number(max_iter), _number(tol)


def replace_solver(layer: Any, solver: FixedPointSolver) -> None:
    """Sets the solver of a trained layer, and nothing else of its training.

    Components that are `"auto"` would follow from the solver. Reduces a
    `max_iter_jitter` that its budget does not allow.

    Args:
        layer: `DEQ` layer.
        solver: Its new solver.
    """
    gradient, regularizer = layer.gradient, layer.regularizer
    layer.solver = solver
    layer.gradient, layer.regularizer = gradient, regularizer
    layer.max_iter_jitter = min(layer.max_iter_jitter, solver.max_iter - 1)


def as_numbers(max_iter: Any = None, tol: Any = None) -> tuple[Any, Any]:
    """Checks the arguments of a call; returns numbers if their values are known."""
    return as_max_iter(_number(max_iter)), as_tol(_number(tol))


def _number(value: Any) -> Any:
    """Returns the number in a tensor if it is known; other values are unchanged."""
    if value is None or not tf.is_tensor(value):
        return value
    known = tf.get_static_value(value)
    return value if known is None or known.ndim else known.item()
