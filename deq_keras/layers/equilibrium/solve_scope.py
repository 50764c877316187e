"""A scope that sets the budgets of equilibrium layers and records their solutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from deq_keras import solvers
from deq_keras.core.request import as_max_iter, as_tol
from deq_keras.core.structure import Nest


class SolveScope:
    """Sets budget and tolerance of the `DEQ` layers of a model, and records solutions.

    Budgets are variables of the layers, which compiled functions read at each call.
    Within the scope they therefore apply to all calls of the model outside of training:
    to the model itself, to `predict`, `evaluate` and other compiled functions, whether
    they were traced before or within the scope. The end of the scope restores them.
    Within a `tf.function`, a scope applies to the calls that are traced in it. Nothing
    else changes: calls have the gradients and the metrics that they have without it.

    XLA needs static shapes: a function that XLA compiled spends at most the budget that
    the layer had when it was traced. The scope of a model lets `predict` and `evaluate`
    trace again for a larger budget; trace functions of your own again.

    Args:
        model: A `keras.Model`, a `DEQ` layer, or another layer that contains them.
        max_iter: Budget of evaluations of each layer, a positive integer or an integer
            scalar tensor. Defaults to `None`, the budget outside of the scope.
        tol: Tolerance, a float >= 0 or a float scalar tensor. Defaults to `None`, the
            tolerance outside of the scope.
        initial_states: Optional dict from names, as in `solutions`, to states. The
            calls start from these instead of the layer's initial state; see the call
            argument of `DEQ`. They apply where solutions are recorded.

    Attributes:
        solutions: Dict from layer names to the `deq_keras.solvers.Solution` of their
            solve, in the order of the calls. Further calls of a layer within the scope
            have the names `NAME_2`, `NAME_3` and so on. Calls within compiled functions
            are recorded only by a scope in the same function.

    Raises:
        ValueError: If the model contains no `DEQ` layer, and at the end of the scope if
            `initial_states` names a layer that was not called.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16), name="deq")
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> with deq_keras.layers.SolveScope(model, max_iter=2, tol=0.0) as scope:
    ...     outputs = model(np.ones((4, 3), "float32"))
    >>> scope.solutions["deq"].num_evaluations.numpy()
    array([2, 2, 2, 2], dtype=int32)
    """

    # Whether calls in the scope may be differentiated.
    is_differentiable = True

    def __init__(
        self,
        model: keras.layers.Layer,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
        initial_states: Mapping[str, Nest] | None = None,
    ) -> None:
        self.model = model
        self.max_iter = as_max_iter(max_iter)
        self.tol = as_tol(tol)
        self.initial_states = dict(initial_states or {})
        self.solutions: dict[str, solvers.Solution] = {}
        self._names: list[str] = []
        self._is_eager = True
        self._restore: list[Any] = []

    def __enter__(self) -> SolveScope:
        if not isinstance(self.model, keras.layers.Layer):
            raise ValueError(
                "`model` must be a Keras model or layer whose DEQ layers the scope "
                "sets: SolveScope(model, max_iter=...). Received: "
                f"model={self.model!r}."
            )
        layers = [
            layer for layer in self.model._flatten_layers() if hasattr(layer, "_scope")
        ]
        if not layers:
            raise ValueError(
                "A SolveScope sets the DEQ layers of a model, and this model contains "
                f"none. Received: model={self.model.name!r}."
            )
        self._is_eager = tf.executing_eagerly()
        self._restore = [layer._enter_scope(self) for layer in layers]
        if any(layer._outgrew_xla() for layer in layers):
            for name in ("make_predict_function", "make_test_function"):
                if hasattr(self.model, name):
                    getattr(self.model, name)(force=True)
        return self

    def __exit__(self, exception_type: Any, *exception: Any) -> None:
        for restore in reversed(self._restore):
            restore()
        unknown = set(self.initial_states) - set(self._names)
        if unknown and exception_type is None:
            raise ValueError(
                "`initial_states` names layers that were not called within the scope. "
                "A compiled function, such as that of `model.predict`, does not read "
                "them: call the model itself. "
                f"Expected: names among {self._names}. Received: {sorted(unknown)}."
            )

    @property
    def is_valid(self) -> bool:
        """Whether a call made now belongs to the scope.

        A function that is traced in an eager scope outlives it.
        """
        return self._is_eager == tf.executing_eagerly()

    def reserve_name(self, name: str) -> str:
        """Returns the name of the next call of a layer: NAME, NAME_2, NAME_3, ..."""
        names = [name, *(f"{name}_{i}" for i in range(2, len(self._names) + 2))]
        name = next(name for name in names if name not in self._names)
        self._names.append(name)
        return name

    def prepare(
        self, name: str, layer: Any, request: solvers.SolveRequest
    ) -> solvers.SolveRequest:
        """Returns the request of a solve. Subclasses can change it.

        Args:
            name: String that `reserve_name` returned.
            layer: The `DEQ` layer.
            request: Its `SolveRequest`.
        """
        del name, layer
        return request

    def record(
        self, name: str, problem: solvers.FixedPointProblem, solution: solvers.Solution
    ) -> None:
        """Stores the solution of a solve.

        Args:
            name: String that `reserve_name` returned.
            problem: The `FixedPointProblem`.
            solution: The `Solution`.
        """
        del problem
        self.solutions[name] = solution
