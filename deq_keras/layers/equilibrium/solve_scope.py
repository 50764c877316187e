"""A scope that sets the budgets of equilibrium layers and records their solutions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras import solvers
from deq_keras.core.checks import (
    check_count,
    check_finite,
    check_integer,
    check_non_negative,
    check_optional_count,
)
from deq_keras.core.structure import Nest, masked
from deq_keras.layers.equilibrium.ambient import AmbientScopes
from deq_keras.multistart import multistart_states

_ENTERED: AmbientScopes[SolveScope] = AmbientScopes("deq_keras_solve_scope")


class SolveScope:
    """Sets the budget of `DEQ` layers outside of training, and records their solutions.

    The budget and the tolerance apply to every call in this thread until the scope
    ends: to a model, and to `predict`, `evaluate` and other compiled functions, whether
    they were traced before or within the scope. Training calls and other threads ignore
    it. The innermost of nested scopes that sets a value applies.

    A scope also replaces initial states, restarts solves and records solutions, but
    only for calls made directly within it: eager calls of a model, or, in a
    `tf.function` that enters the scope, calls in that function. Such solves carry no
    gradient and update no metrics. A compiled function that is called in a scope with
    `initial_states` or `restarts` raises an error.

    Args:
        max_iter: Budget of evaluations of each layer, an integer or an integer scalar
            tensor. Below 1: the budget of the layer's solver. Defaults to `None`, the
            budget outside of the scope.
        tol: Tolerance, a float or a scalar tensor. Below 0: the tolerance of the
            layer's solver. Defaults to `None`, the tolerance outside of the scope.
        initial_states: Optional dict from names, as in `solutions`, to states. Solves
            start from these instead of the layer's initial state; see `DEQ`.
        max_iter_limit: Positive integer. Upper limit of the budget. It determines the
            shapes of the solve, as XLA requires. Defaults to `None`, no limit.
        restarts: Positive integer. Number of copies of all samples that the inputs
            contain, one copy after the other. All copies except the first start at
            random states; see `multistart.solve`. Defaults to `1`.
        seed: Integer. Seed of the states of restarts. Defaults to `0`.

    Attributes:
        solutions: Dict from layer names to the `deq_keras.solvers.Solution` of their
            solve, in the order of the calls. Further calls of a layer within the scope
            have the names `NAME_2`, `NAME_3` and so on. Compiled functions record no
            solutions.

    Raises:
        ValueError: At the end of the scope, if `initial_states` names a layer that was
            not called.

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
        self.max_iter = _number_or_tensor("max_iter", max_iter, check_integer)
        self.tol = _number_or_tensor("tol", tol, check_finite)
        self.initial_states = dict(initial_states or {})
        self.max_iter_limit = check_optional_count("max_iter_limit", max_iter_limit)
        self.restarts = check_count("restarts", restarts)
        self.seed = check_integer("seed", seed)
        self.solutions: dict[str, solvers.Solution] = {}
        self._names: list[str] = []
        self._lock = threading.Lock()

    @staticmethod
    def entered() -> SolveScope | None:
        """Returns the innermost scope that is valid for a call made now, or `None`."""
        return next(iter(_ENTERED.valid()), None)

    @staticmethod
    def settings_of_compiled_call() -> Settings:
        """Returns the `Settings` of the compiled function that is called now.

        Raises:
            ValueError: If a scope sets what a compiled function cannot use.
        """
        scopes = _ENTERED.entered()
        if not scopes:
            return _NO_SETTINGS
        for scope in scopes:
            if scope.initial_states or scope.restarts > 1:
                raise ValueError(
                    "A compiled function, such as that of `model.predict`, cannot use "
                    "the `initial_states` or `restarts` of a SolveScope around it. "
                    "Call the model itself within the scope, `model(inputs)`, or enter "
                    "the scope within the compiled function. Received: initial_states "
                    f"of {list(scope.initial_states)}, restarts={scope.restarts}."
                )
        return Settings.of(scopes)

    @staticmethod
    def settings(call: Settings | None = None) -> Settings:
        """Returns the `Settings` that are valid for a call made now.

        Args:
            call: Settings of the call itself, which override the scopes.
        """
        return Settings.of([*([] if call is None else [call]), *_ENTERED.valid()])

    def __enter__(self) -> SolveScope:
        _ENTERED.enter(self)
        return self

    def __exit__(self, exception_type: Any, *exception: Any) -> None:
        _ENTERED.leave()
        unknown = set(self.initial_states) - set(self._names)
        if unknown and exception_type is None:
            raise ValueError(
                "`initial_states` names layers that were not called within the scope. "
                f"Expected: names among {self._names}. Received: {sorted(unknown)}."
            )

    def reserve_name(self, name: str) -> str:
        """Returns the name of the next call of a layer: NAME, NAME_2, NAME_3, ..."""
        with self._lock:
            names = [name, *(f"{name}_{i}" for i in range(2, len(self._names) + 2))]
            name = next(name for name in names if name not in self._names)
            self._names.append(name)
        return name

    def solve(
        self,
        name: str,
        layer: Any,
        problem: solvers.FixedPointProblem,
        request: solvers.SolveRequest,
    ) -> solvers.Solution:
        """Solves for a `DEQ` layer that is called within the scope; records the result.

        Args:
            name: String that `reserve_name` returned.
            layer: The `DEQ` layer.
            problem: Its `FixedPointProblem`.
            request: Its `SolveRequest`.
        """
        if self.restarts > 1:
            seed = tf.constant([self.seed, 0])
            state = request.initial_state
            state = multistart_states(layer.initial_state, state, self.restarts, seed)
            request = request._replace(initial_state=masked(state, problem.mask))
        solution = layer.solver.solve(problem, request)
        self.solutions[name] = solution
        return solution


class Settings(NamedTuple):
    """The budget and the tolerance of scopes. `None` means the solver decides.

    Attributes:
        max_iter: See `SolveScope`.
        tol: See `SolveScope`.
        max_iter_limit: See `SolveScope`.
    """

    max_iter: int | tf.Tensor | None = None
    tol: float | tf.Tensor | None = None
    max_iter_limit: int | None = None

    @classmethod
    def of(cls, scopes: Sequence[SolveScope | Settings]) -> Settings:
        """Returns the settings of scopes, the innermost first."""
        return cls(
            *(
                next((v for s in scopes if (v := getattr(s, name)) is not None), None)
                for name in cls._fields
            )
        )

    @classmethod
    def of_call(cls, max_iter: Any, tol: Any) -> Settings:
        """Returns the settings of the call arguments of a layer.

        Raises:
            ValueError: If an argument is out of range or a tensor of the wrong kind.
        """
        return cls(
            _checked_argument("max_iter", max_iter, check_count),
            _checked_argument("tol", tol, check_non_negative),
        )

    def applied_to(self, solver: solvers.FixedPointSolver) -> solvers.FixedPointSolver:
        """Returns the solver of a training step with the settings of its call."""
        given = {"max_iter": self.max_iter, "tol": self.tol}
        given = {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if tf.is_tensor(value):
                raise ValueError(
                    f"In training, `{name}` must be a number, because gradients need "
                    "the largest number of steps when the function is traced. Use "
                    "`max_iter_jitter` of DEQ to vary the budget. Received: "
                    f"{name}={value!r}."
                )
        return solver.from_config({**solver.get_config(), **given}) if given else solver

    def max_iter_of(self, solver: solvers.FixedPointSolver) -> int | tf.Tensor:
        """Returns the budget of a layer with this solver."""
        max_iter: Any = self.max_iter
        if max_iter is None:
            return solver.max_iter
        if tf.is_tensor(max_iter):
            own = tf.cast(solver.max_iter, max_iter.dtype)
            return tf.where(max_iter < 1, own, max_iter)
        return solver.max_iter if max_iter < 1 else max_iter

    def tol_of(self, solver: solvers.FixedPointSolver) -> float | tf.Tensor | None:
        """Returns the tolerance of a layer with this solver."""
        tol: Any = self.tol
        if tol is None:
            return solver.tol
        if not tf.is_tensor(tol):
            return tol if tol >= 0 else solver.tol
        own = -1.0 if solver.tol is None else solver.tol
        # NaN selects the tolerance of the solver.
        return tf.where(tol >= 0, tol, tf.constant(own, tol.dtype))


_NO_SETTINGS = Settings()


def _number_or_tensor(name: str, value: Any, check: Callable[[str, Any], Any]) -> Any:
    return value if value is None or tf.is_tensor(value) else check(name, value)


def _checked_argument(name: str, value: Any, check: Callable[[str, Any], Any]) -> Any:
    """Returns a number or, if its value is unknown until the call, a scalar tensor."""
    if value is None or not tf.is_tensor(value):
        return None if value is None else check(name, value)
    known = tf.get_static_value(value)
    if known is not None:
        return check(name, known.item() if known.ndim == 0 else known)
    kind = "an integer" if name == "max_iter" else "a float"
    dtype = tf.as_dtype(value.dtype)  # A Keras variable has the name of its dtype.
    is_kind = dtype.is_integer if name == "max_iter" else dtype.is_floating
    if value.shape.rank not in (0, None) or not is_kind:
        raise ValueError(
            f"`{name}` must be {kind} or {kind} scalar tensor. Received: "
            f"{name} of shape {value.shape} and dtype {dtype.name}."
        )
    return value


def at_most(budget: Any, limit: int) -> int | tf.Tensor:
    """Returns the smaller of a budget and a limit."""
    if not tf.is_tensor(budget):
        return min(budget, limit)
    return tf.cast(tf.minimum(budget, tf.constant(limit, budget.dtype)), tf.int32)
