"""A scope in which equilibrium layers solve as it says, and tell what they found."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from deq_keras import solvers
from deq_keras.checks import check_count, check_integer, check_optional_count
from deq_keras.restarts import starting_states
from deq_keras.structure import Nest

_ENTERED: contextvars.ContextVar[SolveScope | None] = contextvars.ContextVar(
    "deq_keras_solve_scope", default=None
)


class SolveScope:
    """Within it, `DEQ` layers solve with its budget, and it keeps their solutions.

    It is for calls of a model outside of training that ask for a budget or a tolerance,
    or for what the solves found, without a look into the model. A call in training
    takes no notice of it, nor does another thread. The solves carry no gradient and
    enter no metrics. Several scopes may be nested; the innermost counts.

    Args:
        max_iter: Budget of evaluations of each layer, an integer or an integer scalar
            tensor. Below 1: that of the layer's solver, as `None`, the default.
        tol: Tolerance, a float or a scalar tensor. Below 0: that of the layer's solver,
            as `None`, the default.
        initial_states: Optional dict of names, as `solutions` has them, to the states
            that the solves start from, in place of the layer's `start`; see `DEQ`.
        max_iter_limit: Positive integer. The largest budget: larger ones count as it,
            and all shapes are as it makes them, as XLA asks for. Defaults to `None`, no
            limit.
        restarts: Positive integer. The batch has all samples so many times, one after
            the other: first all, then all again, and so on. All but the first begin
            at drawn states; see `DEQ.solve`. Defaults to `1`.
        seed: Integer. The draws of restarts follow from it. Defaults to `0`.

    Attributes:
        solutions: Dict of names of layers to the `deq_keras.solvers.Solution` of their
            solve, in the order of the calls. A layer that is called again within the
            scope has the name `NAME_2` there, then `NAME_3`.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16), name="deq")
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> with deq_keras.layers.SolveScope(max_iter=2, tol=0.0) as scope:
    ...     outputs = model(np.ones((4, 3), "float32"))
    >>> scope.solutions["deq"].num_evaluations.numpy()
    array([2, 2, 2, 2], dtype=int32)
    """

    def __init__(
        self,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
        initial_states: Mapping[str, Nest] | None = None,
        max_iter_limit: int | None = None,
        restarts: int = 1,
        seed: int = 0,
    ) -> None:
        self.max_iter = max_iter
        self.tol = tol
        self.initial_states = dict(initial_states or {})
        self.max_iter_limit = check_optional_count("max_iter_limit", max_iter_limit)
        self.restarts = check_count("restarts", restarts)
        self.seed = check_integer("seed", seed)
        self.solutions: dict[str, solvers.Solution] = {}
        self._tokens: list[contextvars.Token] = []

    @staticmethod
    def entered() -> SolveScope | None:
        """Returns the innermost scope, or `None` outside of all."""
        return _ENTERED.get()

    def __enter__(self) -> SolveScope:
        self._tokens.append(_ENTERED.set(self))
        return self

    def __exit__(self, *exception: Any) -> None:
        _ENTERED.reset(self._tokens.pop())

    def solve(
        self, layer: Any, inputs: Nest, initial_state: Nest | None, mask: Nest | None
    ) -> solvers.Solution:
        """Solves for a `DEQ` layer that is called within the scope, and remembers it.

        Args:
            layer: The `DEQ` layer.
            inputs: What it is called with.
            initial_state: See the call arguments of `DEQ`.
            mask: See the call arguments of `DEQ`.
        """
        name = self._free_name(layer.name)
        if initial_state is None:
            initial_state = self.initial_states.get(name)
        if self.restarts > 1:
            initial_state = self._restarted(layer, inputs, initial_state, mask)
        max_iter = budget = self._budget(layer.solver)
        if self.max_iter_limit is not None:
            max_iter = self.max_iter_limit
        solution = layer.solve(
            inputs,
            initial_state,
            max_iter,
            self._tol(layer.solver),
            mask=mask,
            budget=budget,
        )
        self.solutions[name] = solution
        return solution

    def _restarted(
        self, layer: Any, inputs: Nest, initial_state: Nest | None, mask: Nest | None
    ) -> Nest:
        """Returns the states that the restarts begin at."""
        if initial_state is None:
            initial_state = layer.initial_state(inputs, mask=mask)
        seed = tf.constant([self.seed, 0])
        return starting_states(layer.start, initial_state, self.restarts, seed)

    def _free_name(self, name: str) -> str:
        names = [name, *(f"{name}_{i}" for i in range(2, len(self.solutions) + 2))]
        return next(name for name in names if name not in self.solutions)

    def _budget(self, solver: solvers.FixedPointSolver) -> int | tf.Tensor:
        own, limit = solver.max_iter, self.max_iter_limit
        budget: Any = own if self.max_iter is None else self.max_iter
        if tf.is_tensor(budget):
            budget = tf.where(budget < 1, tf.cast(own, budget.dtype), budget)
            return budget if limit is None else _at_most(budget, limit)
        budget = own if budget < 1 else budget
        return budget if limit is None else min(budget, limit)

    def _tol(self, solver: solvers.FixedPointSolver) -> float | tf.Tensor | None:
        tol: Any = self.tol
        if not tf.is_tensor(tol):
            return solver.tol if tol is None or not tol >= 0 else tol
        own = -1.0 if solver.tol is None else solver.tol
        # What is not a number is no tolerance either.
        return tf.where(tol >= 0, tol, tf.constant(own, tol.dtype))


def _at_most(budget: tf.Tensor, limit: int) -> tf.Tensor:
    return tf.cast(tf.minimum(budget, tf.constant(limit, budget.dtype)), tf.int32)
