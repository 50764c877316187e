"""The replaceable components of an equilibrium layer, and their defaults."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core.checks import check_integer
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium.cell_problem import declares
from deq_keras.layers.equilibrium.first_state import check_owned


class Component:
    """An attribute that can be set to a name, a config dict or an instance.

    Args:
        get: Function of a layer and the new value that returns the instance.
    """

    def __init__(self, get: Callable[[Any, Any], Any]) -> None:
        self._get = get

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = f"_{name}"

    def __get__(self, layer: Any, owner: type | None = None) -> Any:
        return self if layer is None else getattr(layer, self._attribute)

    def __set__(self, layer: Any, value: Any) -> None:
        setattr(layer, self._attribute, self._get(layer, value))


def get_solver(
    layer: Any, solver: str | Config | solvers.FixedPointSolver
) -> solvers.FixedPointSolver:
    """Returns the solver of a layer."""
    found = solvers.get(solver)
    if isinstance(found, solvers.LinearSolver):
        raise ValueError(
            f"{type(found).__name__} solves only the adjoint equation. Use it as "
            "gradient=ImplicitGradient(solver=...), and Anderson or Broyden as the "
            f"solver of the layer. Received: solver={found!r}."
        )
    # Keras then does not use XLA, which does not support changing shapes.
    layer.supports_jit = not found.compact
    return found


def get_gradient(
    layer: Any, gradient: str | Config | gradients.EquilibriumGradient
) -> gradients.EquilibriumGradient:
    """Returns the gradient of a layer."""
    return gradients.get(gradient)


def get_regularizer(
    layer: Any, regularizer: str | Config | regularizers.EquilibriumRegularizer | None
) -> regularizers.EquilibriumRegularizer | None:
    """Returns the regularizer of a layer, or `None`."""
    del layer
    return regularizers.get(regularizer)


def get_initial_state(
    layer: Any, initial_state: str | Config | initial_states.InitialState
) -> initial_states.InitialState:
    """Returns the initial state of a layer."""
    found = initial_states.get(initial_state)
    if layer.built and found.initializer and layer._learned_state is None:
        raise ValueError(
            "A learned initial state needs weights, which a layer adds when it is "
            "built. Pass `initial_state` to the constructor of the layer. Received: "
            f"initial_state={found!r}."
        )
    if not layer.built and found.layer is not None:
        layer._predictor = found.layer
    if isinstance(initial_state, dict) and _are_alike(found.layer, layer._predictor):
        # A phase of a run names the layer that it continues to train.
        found.layer = layer._predictor
    check_owned(layer, found)
    return found


def _are_alike(one: Any, other: Any) -> bool:
    """Returns whether two layers are equal except for their names."""
    if type(one) is not type(other) or one is None:
        return False
    return bool({**one.get_config(), "name": ""} == {**other.get_config(), "name": ""})


def get_jitter(layer: Any, jitter: int) -> int:
    """Returns the budget jitter of a layer, which its solver must allow."""
    return check_integer("max_iter_jitter", jitter, 0, layer.solver.max_iter - 1)


def requested_state(
    request: solvers.SolveRequest, own: initial_states.InitialState
) -> tuple[initial_states.InitialState, Nest | None]:
    """Returns the `InitialState` of a request, and its state if it contains tensors."""
    state = request.initial_state
    if not isinstance(state, str | initial_states.InitialState):
        return own, state
    source = initial_states.get(state)
    if source.is_random and request.seed is None:
        raise ValueError(
            "A random initial state needs a seed. Pass it to the request: "
            f"SolveRequest({state!r}, seed=0). Received: seed=None."
        )
    return source, None


def check_arguments(arguments: dict[str, Any]) -> None:
    """Raises `ValueError` for arguments of the solver."""
    for name in ("max_iter", "tol", "damping", "stop_mode"):
        if name in arguments:
            value = f"{name}={arguments[name]!r}"
            raise ValueError(
                f"`{name}` is an argument of the solver, not of DEQ. Use DEQ(cell, "
                f"solver=deq_keras.solvers.FixedPointIteration({value})), or another "
                f"solver. Received: {value}."
            )


class _Defaults(NamedTuple):
    """The solver and the regularizer that `"auto"` selects."""

    solver: str
    regularizer: str | None


# A monotone cell has an equilibrium that this solver finds. It needs no penalty.
_MONOTONE = _Defaults("peaceman_rachford", None)
# Takes the same plain steps as in training: Anderson's mixing stalls on tasks that
# propagate information.
_OF_ITERATES = _Defaults("fixed_point_iteration", "residual")
_OF_EQUILIBRIUM = _Defaults("anderson", "contraction")

# The truncated gradient differentiates up to 12 steps after free steps. A solver with
# less than twice this budget would take fewer steps than most training steps.
_TRUNCATED_BUDGET = 24

# Machine epsilon of the dtypes whose rounding hides common tolerances.
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


def choose_components(layer: Any, solver: Any, gradient: Any, regularizer: Any) -> None:
    """Sets the components of a layer; `"auto"` selects components that suit its cell.

    Args:
        layer: The `DEQ` layer, with a cell and a dtype.
        solver: See `DEQ`.
        gradient: See `DEQ`.
        regularizer: See `DEQ`.
    """
    is_monotone = declares(layer.cell, "operator_splitting")
    if gradient == "auto":
        gradient = "implicit" if is_monotone else _gradient_of_solver(solver)
    layer.gradient = gradient
    defaults = _MONOTONE if is_monotone else _OF_EQUILIBRIUM
    if layer.gradient.differentiates_iterates:
        defaults = _OF_ITERATES
    # Monotone cells are solved in float32 or better, regardless of their dtype.
    dtype = "float32" if is_monotone else layer.cell.compute_dtype
    layer.solver = _in_reach(defaults.solver if solver == "auto" else solver, dtype)
    layer.regularizer = defaults.regularizer if regularizer == "auto" else regularizer


def _gradient_of_solver(solver: str | Config | solvers.FixedPointSolver) -> str:
    """Returns the default gradient, which must train what the solver computes."""
    if solver == "auto":
        return "truncated"
    found = solvers.get(solver)
    if not takes_plain_steps(found):
        return "neumann"
    return "truncated" if found.max_iter >= _TRUNCATED_BUDGET else "unrolled"


def takes_plain_steps(solver: solvers.FixedPointSolver) -> bool:
    """Returns whether a solver takes the steps of `TruncatedGradient`."""
    iteration = solvers.FixedPointIteration
    is_iteration = type(solver).step is iteration.step
    return is_iteration and getattr(solver, "patience", None) is None


def unquantized_policy(cell: keras.layers.Layer) -> keras.DTypePolicy:
    """Returns the dtype policy of a cell, without its quantization."""
    policy = cell.dtype_policy
    name = f"mixed_{policy.compute_dtype}"
    is_mixed = policy.compute_dtype != policy.variable_dtype
    return keras.DTypePolicy(name if is_mixed else policy.compute_dtype)


def _in_reach(
    solver: str | Config | solvers.FixedPointSolver, dtype: str
) -> solvers.FixedPointSolver:
    """Returns a solver. A solver given by name gets a tolerance above rounding."""
    found = solvers.get(solver)
    epsilon = _EPSILON.get(dtype, 0.0)
    if not found.tol or found.tol >= epsilon / 4:  # Zero spends the budget, too.
        return found
    if isinstance(solver, str):
        return found.from_config({**found.get_config(), "tol": epsilon})
    warnings.warn(
        f"The tolerance is out of reach in {dtype}, so samples spend the whole budget: "
        f"rounding alone leaves a relative residual of about {epsilon / 4:.0e}. "
        f"Use tol={epsilon:.0e} or more, or tol=None. Received: solver={found!r}.",
        stacklevel=4,
    )
    return found
