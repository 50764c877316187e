"""A scope that sets the budgets of equilibrium layers and records their solutions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from deq_keras import solvers
from deq_keras.core.nonfinite import usable_state
from deq_keras.core.request import as_max_iter, as_tol
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers


class SolveScope:
    """Sets budget and tolerance of the `DEQ` layers of a model, and records solutions.

    Budgets are variables of the layers, which compiled functions read at each call.
    Within the scope they therefore apply to all calls of the model outside of training:
    to the model itself, to `predict`, `evaluate` and other compiled functions, whether
    they were traced before or within the scope. The end of the scope restores them.
    Within a `tf.function`, a scope applies to the calls that are traced in it. Nothing
    else changes: calls have the gradients and the metrics that they have without it.

    Direct calls in other threads ignore the scope. Compiled functions do not: all
    threads share the variables.

    Args:
        model: A `keras.Model`, a `DEQ` layer, or another layer that contains them.
        max_iter: Budget of evaluations of each layer, a positive integer or an integer
            scalar tensor. Defaults to `None`, the budget outside of the scope.
        tol: Tolerance, a float >= 0 or a float scalar tensor. Defaults to `None`, the
            tolerance outside of the scope.
        initial_states: Optional dict from names, as in `solutions`, to states. The
            calls start from these instead of their own or the layer's initial state;
            see the call argument of `DEQ`. They apply where solutions are recorded.

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

    # Whether calls in the scope have no gradient and do not update metrics.
    is_pure = False

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

    def __enter__(self) -> SolveScope:
        if not isinstance(self.model, keras.layers.Layer):
            raise ValueError(
                "`model` must be a Keras model or layer whose DEQ layers the scope "
                "sets: SolveScope(model, max_iter=...). Received: "
                f"model={self.model!r}."
            )
        budgets = self._budgets()
        if not budgets:
            raise ValueError(
                "A SolveScope sets the DEQ layers of a model, and this model contains "
                f"none. Received: model={self.model.name!r}."
            )
        with contextlib.ExitStack() as stack:
            for budget in budgets:
                budget.enter(self)
                stack.callback(budget.leave, self)
            stack.pop_all()  # All layers were entered.
        return self

    def __exit__(self, exception_type: Any, *exception: Any) -> None:
        for budget in self._budgets():
            budget.leave(self)
        unknown = set(self.initial_states) - set(self._names)
        if unknown and exception_type is None:
            raise ValueError(
                "`initial_states` names layers that were not called within the scope. "
                "A compiled function, such as that of `model.predict`, does not read "
                "them: call the model itself. "
                f"Expected: names among {self._names}. Received: {sorted(unknown)}."
            )

    def _budgets(self) -> list[Any]:
        return [layer._budget for layer in equilibrium_layers(self.model)]

    def reserve_name(self, name: str) -> str:
        """Returns the name of the next call of a layer: NAME, NAME_2, NAME_3, ..."""
        names = [name, *(f"{name}_{i}" for i in range(2, len(self._names) + 2))]
        name = next(name for name in names if name not in self._names)
        self._names.append(name)
        return name

    def start(self, name: str, initial_state: Nest | None) -> Nest | None:
        """Returns the state from which a call starts, or `None`.

        Samples whose state in `initial_states` is not finite keep their own.

        Args:
            name: String that `reserve_name` returned.
            initial_state: The initial state that the call is given, or `None`.
        """
        state = self.initial_states.get(name, initial_state)
        if state is None or initial_state is None or state is initial_state:
            return state
        return usable_state(state, initial_state)

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
