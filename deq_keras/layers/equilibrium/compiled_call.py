"""Settings that a compiled call of an equilibrium layer reads when it runs."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework import func_graph

from deq_keras.core.graphs import CallTimeValue, innermost_function, is_compiled_by_xla
from deq_keras.core.serialization import Configured
from deq_keras.layers.equilibrium.carry_scope import CarryScope
from deq_keras.layers.equilibrium.solve_scope import Settings, SolveScope, at_most


class CompiledCalls:
    """Applies the current settings of a layer to its compiled calls.

    A compiled function, such as the one behind `model.predict`, is traced once and
    outlives later changes of the layer. On each call it reads the budget and the
    tolerance here, from a `SolveScope` or from the layer's solver. If another component
    was replaced, the call raises an error, because the function still uses the old one.

    Args:
        layer: The `DEQ` layer.
    """

    def __init__(self, layer: Any) -> None:
        # Graphs hold this object, and must not keep the layer alive.
        self._reference = weakref.ref(layer)
        self._values: dict[tuple, CallTimeValue] = {}
        self._training_graphs: list[weakref.ref] = []
        weakref.finalize(layer.cell, _dismantle, self._training_graphs).atexit = False

    @property
    def _layer(self) -> Any:
        layer = self._reference()
        if layer is None:
            raise ValueError("The DEQ layer of this compiled function was deleted.")
        return layer

    def request_options(self, call: Settings) -> dict[str, Any]:
        """Returns budget and tolerance of a call made now, as `SolveRequest` fields.

        Args:
            call: `Settings` of the call arguments, which override a `SolveScope`.
        """
        settings, solver = SolveScope.settings(call), self._layer.solver
        limit = settings.max_iter_limit
        max_iter, tol = settings.max_iter_of(solver), settings.tol_of(solver)
        if limit is not None:
            max_iter = tf.convert_to_tensor(at_most(max_iter, limit))
            return {"max_iter": max_iter, "limit": limit, "tol": tol}
        # In a graph, a scope around the call of the function may set the other values.
        options = self._call_time_options()
        if settings.max_iter is not None or not options:
            options = {"max_iter": max_iter, "tol": options.get("tol", tol)}
        return options if settings.tol is None else {**options, "tol": tol}

    def _call_time_options(self) -> dict[str, Any]:
        """Returns the options that a compiled function reads at each call.

        XLA needs static shapes: its functions can spend at most the `max_iter` that the
        solver has when they are traced.
        """
        if innermost_function() is None:
            return {}
        limit = self._layer.solver.max_iter if is_compiled_by_xla() else None
        signature = _inference_signature(self._layer)
        key = (str(signature), limit)
        max_iter, tol = (*key, "max_iter"), (*key, "tol")
        if max_iter not in self._values:
            self._values[max_iter] = CallTimeValue(
                lambda: self._max_iter(signature, limit),
                lambda: self._layer.solver.max_iter,
                tf.int32,
                lambda: self._known("max_iter"),
            )
            self._values[tol] = CallTimeValue(
                lambda: self._tol(SolveScope.settings_of_compiled_call()),
                lambda: self._tol(Settings()),
                tf.float64,
                lambda: self._known("tol"),
            )
        return {
            "max_iter": self._values[max_iter](),
            "limit": limit,
            "tol": self._values[tol](),
        }

    def check_training(self) -> None:
        """Checks, at each call of the traced function, that the layer is unchanged."""
        graph = innermost_function()
        if graph is None:
            return
        self._training_graphs.append(weakref.ref(graph))
        signature = _training_signature(self._layer)

        def read() -> int:
            CarryScope.check_compiled_call()
            self._check(signature, _training_signature)
            return 0

        key = (str(signature),)
        if key not in self._values:
            self._values[key] = CallTimeValue(read, lambda: 0, tf.int32)
        self._values[key]()

    def _max_iter(self, signature: tuple, limit: int | None) -> int:
        layer = self._check(signature, _inference_signature)
        settings = SolveScope.settings_of_compiled_call()
        max_iter = int(settings.max_iter_of(layer.solver))
        max_iter = min(max_iter, settings.max_iter_limit or max_iter)
        if limit is not None and max_iter > limit:
            raise ValueError(
                "A function that XLA compiled cannot spend more evaluations than the "
                "solver had when it was compiled. Compile the model again with a "
                "solver of a larger `max_iter`, or without `jit_compile`. Expected: "
                f"max_iter <= {limit}. Received: max_iter={max_iter}."
            )
        return max_iter

    def _tol(self, settings: Settings) -> float | tf.Tensor:
        tol = settings.tol_of(self._layer.solver)
        return -1.0 if tol is None else tol

    def _known(self, name: str) -> int | float | tf.Tensor | None:
        """Returns the value that a scope in the traced function sets, or `None`."""
        settings = SolveScope.settings()
        if getattr(settings, name) is None:
            return None
        if name == "tol":
            return self._tol(settings)
        return settings.max_iter_of(self._layer.solver)

    def _check(self, signature: tuple, current: Any) -> Any:
        layer = self._layer
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

    TensorFlow never frees such a graph: Keras' optimizers sum the gradients of replicas
    by a `tf.custom_gradient`, whose functions stay in a registry.
    """
    for reference in references:
        graph = reference()
        if graph is not None:
            func_graph.dismantle_func_graph(graph)


def _inference_signature(layer: Any) -> tuple:
    solver = layer.solver
    # A new budget or tolerance needs no new function.
    options = {**_options(solver), "max_iter": None, "tol": solver.tol is not None}
    return type(solver).__name__, options, _signature(layer.initial_state)


def _training_signature(layer: Any) -> tuple:
    components = (layer.solver, layer.gradient, layer.regularizer, layer.initial_state)
    return (*map(_signature, components), layer.max_iter_jitter)


def _options(component: Configured) -> dict[str, Any]:
    """Returns the attributes of a component that change what it computes."""
    return dict(vars(component))


def _signature(value: Any) -> Any:
    """Returns a value to compare components by. `repr` would slow down tiny models."""
    if isinstance(value, Configured):
        return type(value).__name__, _signature(_options(value))
    if isinstance(value, dict):
        return {name: _signature(option) for name, option in value.items()}
    if isinstance(value, list | tuple):
        return [_signature(option) for option in value]
    if isinstance(value, keras.layers.Layer):
        return id(value)
    is_serializable = hasattr(value, "get_config")  # For example, an initializer.
    return str(value.get_config()) if is_serializable else value
