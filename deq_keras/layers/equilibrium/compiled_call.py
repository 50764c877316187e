"""What a compiled call of an equilibrium layer reads when it runs."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph

from deq_keras.graphs import CallTimeValue, innermost_function, is_compiled_by_xla
from deq_keras.layers.equilibrium.carry_scope import CarryScope
from deq_keras.layers.equilibrium.solve_scope import SolveScope


class CompiledCalls:
    """Keeps compiled calls of a layer true to the layer's present settings.

    A compiled function, such as the one behind `model.predict`, is traced once and
    outlives later changes of the layer. On each call it reads the budget and the
    tolerance here, from a `SolveScope` or from the layer's solver. If another component
    was replaced, the call raises an error, because the function still has the old one.

    Args:
        layer: The `DEQ` layer.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = weakref.ref(layer)
        self._values: dict[tuple, tuple[CallTimeValue, CallTimeValue]] = {}
        self._training_graphs: list[weakref.ref] = []
        weakref.finalize(layer.cell, _dismantle, self._training_graphs).atexit = False

    def inference_options(self) -> dict[str, Any]:
        """Returns the `SolveRequest` fields of a call that is being traced, as a dict.

        XLA needs static shapes: its functions can spend at most the `max_iter` that the
        solver has when they are traced.
        """
        if innermost_function() is None:
            return {}
        solver = self._layer().solver
        limit = solver.max_iter if is_compiled_by_xla() else None
        signature = _inference_signature(self._layer())
        max_iter, tol = self._cached(signature, limit)
        options = {"tol": tol()}
        if solver.tol is not None:
            options["takes_last"] = False
        if limit is None:
            return {"max_iter": max_iter(), **options}
        return {"budget": max_iter(), **options}

    def check_training(self) -> None:
        """Makes the traced training call raise an error once its layer changes."""
        graph = innermost_function()
        if graph is None:
            return
        self._training_graphs.append(weakref.ref(graph))
        signature = _training_signature(self._layer())
        if signature not in self._values:

            def read() -> int:
                CarryScope.check_compiled_call()
                self._check(signature, _training_signature)
                return 0

            value = CallTimeValue(read, tf.int32)
            self._values[signature] = (value, value)
        self._values[signature][0]()

    def _cached(
        self, signature: tuple, limit: int | None
    ) -> tuple[CallTimeValue, CallTimeValue]:
        key = (signature, limit)
        if key not in self._values:
            self._values[key] = (
                CallTimeValue(
                    lambda: self._max_iter(signature, limit),
                    tf.int32,
                    lambda: _known(self._layer(), SolveScope.max_iter_of),
                ),
                CallTimeValue(
                    self._tol, tf.float64, lambda: _known(self._layer(), _tol)
                ),
            )
        return self._values[key]

    def _max_iter(self, signature: tuple, limit: int | None) -> int:
        layer = self._check(signature, _inference_signature)
        scope = SolveScope.of_compiled_call()
        max_iter = layer.solver.max_iter
        if scope is not None:
            max_iter = int(scope.max_iter_of(layer.solver))
        if limit is not None and max_iter > limit:
            raise ValueError(
                "A function that XLA compiled cannot spend more evaluations than the "
                "solver had when it was compiled. Compile the model again with a "
                "solver of a larger `max_iter`, or without `jit_compile`. Expected: "
                f"max_iter <= {limit}. Received: max_iter={max_iter}."
            )
        return max_iter

    def _tol(self) -> float:
        return _tol(SolveScope.of_compiled_call(), self._layer().solver)

    def _check(self, signature: tuple, current: Any) -> Any:
        layer = self._layer()
        if current(layer) != signature:
            raise ValueError(
                f"A component of the layer {layer.name!r} was replaced after this "
                "function was compiled, and the function still has the old one. Call "
                "`model.compile(...)` again, between two calls of `fit`; make a "
                f"`tf.function` of your own again. Compiled with: {signature}. "
                f"Received: {current(layer)}."
            )
        return layer


def _dismantle(references: list[weakref.ref]) -> None:
    """Empties graphs of training steps, which cannot run once their weights are gone.

    TensorFlow keeps such a graph for good: Keras' optimizers sum gradients of replicas
    by a `tf.custom_gradient`, whose functions are never removed from a registry.
    """
    for reference in references:
        graph = reference()
        if graph is not None:
            func_graph.dismantle_func_graph(graph)


def _known(layer: Any, setting: Any) -> Any:
    """Returns the setting of a scope in the function being traced, or `None`."""
    scope = SolveScope.entered()
    return None if scope is None else setting(scope, layer.solver)


def _tol(scope: SolveScope | None, solver: Any) -> Any:
    tol = solver.tol if scope is None else scope.tol_of(solver)
    return -1.0 if tol is None else tol


def _inference_signature(layer: Any) -> tuple:
    solver = {"class_name": type(layer.solver).__name__, **layer.solver.get_config()}
    # A new budget or tolerance needs no new function.
    solver.update(max_iter=None, tol=solver["tol"] is not None)
    return str(solver), repr(layer.start)


def _training_signature(layer: Any) -> tuple:
    components = (layer.solver, layer.gradient, layer.regularizer, layer.start)
    return (*map(repr, components), layer.max_iter_jitter)
