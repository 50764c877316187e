"""What `"auto"` means: the components that suit a cell."""

import dataclasses
import warnings
from collections.abc import Container
from typing import Any, Generic, TypeVar

import keras
import tensorflow as tf

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core.checks import check_integer
from deq_keras.core.rounding import product_epsilon

T = TypeVar("T")

# The truncated gradient differentiates up to 12 steps after free steps. A solver with
# less than twice this budget would take fewer steps than most training steps.
_TRUNCATED_BUDGET = 24

# The rounding of finer arithmetic is below all common tolerances.
_FINEST_EPSILON = 2.0**-10


@dataclasses.dataclass(frozen=True)
class Components:
    """The components of a layer.

    Attributes:
        solver: `FixedPointSolver`.
        gradient: `EquilibriumGradient`.
        regularizer: `EquilibriumRegularizer` or `None`.
        max_iter_jitter: Non-negative integer.
        initial_state: `InitialState`.
        reasons: Dict from the names of those that `"auto"` chose to a sentence each.
    """

    solver: solvers.FixedPointSolver
    gradient: gradients.EquilibriumGradient
    regularizer: regularizers.EquilibriumRegularizer | None
    max_iter_jitter: int
    initial_state: initial_states.InitialState
    reasons: dict[str, str]


class Component(Generic[T]):
    """An attribute of `DEQ` that is one of its `Components`, and can be replaced."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, layer: Any, owner: type) -> T:
        value: Any = self
        if layer is not None:
            value = getattr(layer._components, self._name)
        return value

    def __set__(self, layer: Any, value: Any) -> None:
        layer._replace_components(**{self._name: value})


def choose_components(
    cell: keras.layers.Layer, given: dict[str, Any], new: Container[str]
) -> Components:
    """Returns the components of a layer.

    `"auto"` selects a component that suits the cell and the other components: training
    and inference must compute the same function. The study "defaults" chose the
    truncated gradient, which also trains tasks that propagate information over long
    distances (docs/guides/choose.md, "The defaults"). A cell can have defaults of its
    own, see `EquilibriumCell`.

    Args:
        cell: The cell of the layer.
        given: Dict from the names of components to the arguments of `DEQ`.
        new: The names of those that the user gives now.
    """
    solver, gradient, regularizer = (
        given[name] for name in ("solver", "gradient", "regularizer")
    )
    reasons: dict[str, str] = {}

    def resolve(name: str, given: Any, chosen: Any, reason: str) -> Any:
        """Returns a component that was given, the cell's default, or the choice."""
        if given != "auto":
            return given
        own = getattr(cell, f"default_{name}", "auto")
        if own != "auto":
            chosen, reason = own, f"the default of {type(cell).__name__}"
        reasons[name] = f"{chosen!r}: {reason}."
        return chosen

    has_own_tolerance = solver != "auto" and not isinstance(solver, str)
    choice: tuple[str | None, str]
    penalty: tuple[str | None, str]
    if solver == "auto":
        choice = "truncated", "it trains tasks in which information travels, too"
    else:
        choice = _gradient_of_solver(solvers.get_fixed_point_solver(solver))
    gradient = gradients.get(resolve("gradient", gradient, *choice))
    if gradient.differentiates_iterates:
        # Anderson's mixing stalls on tasks that propagate information.
        choice = "fixed_point_iteration", "training takes plain steps"
        penalty = "residual", "training needs steps that settle"
        if solver == "auto":
            # The default solver of the cell may take other steps.
            reasons["solver"] = "{!r}: {}.".format(*choice)
            solver = "fixed_point_iteration"
    else:
        choice = "anderson", "the gradient needs an equilibrium and no trajectory"
        penalty = "contraction", "the gradient needs an equilibrium that contracts"
    found = solvers.get_fixed_point_solver(resolve("solver", solver, *choice))
    regularizer = regularizers.get(resolve("regularizer", regularizer, *penalty))
    dtype = getattr(cell, "solver_dtype", cell.compute_dtype)
    found = _with_reachable_tolerance(found, dtype, has_own_tolerance, "solver" in new)
    initial_state = initial_states.get(given["initial_state"])
    jitter = given["max_iter_jitter"]
    if "max_iter_jitter" in new:  # A later solver may have a smaller budget.
        check_integer("max_iter_jitter", jitter, 0, found.max_iter - 1)
    for component in (found, gradient, regularizer, initial_state):
        if component is not None:
            component.freeze()
    return Components(found, gradient, regularizer, int(jitter), initial_state, reasons)


def _gradient_of_solver(solver: solvers.FixedPointSolver) -> tuple[str, str]:
    """Returns the default gradient, which must train what a solver computes, and the
    reason."""
    if not takes_plain_steps(solver):
        return "neumann", "training must compute what the solver computes"
    if solver.max_iter >= _TRUNCATED_BUDGET:
        return "truncated", "the solver takes plain steps, and enough of them"
    return "unrolled", (
        f"'truncated' needs a budget of {_TRUNCATED_BUDGET} steps, and the solver has "
        f"{solver.max_iter}"
    )


def takes_plain_steps(solver: solvers.FixedPointSolver) -> bool:
    """Returns whether a solver takes the steps of `TruncatedGradient`."""
    is_iteration = type(solver).step is solvers.FixedPointIteration.step
    return is_iteration and getattr(solver, "patience", None) is None


def _with_reachable_tolerance(
    found: solvers.FixedPointSolver, dtype: str, has_own_tolerance: bool, is_new: bool
) -> solvers.FixedPointSolver:
    """Raises a tolerance below rounding, or warns of one that the user has chosen."""
    epsilon = product_epsilon([tf.as_dtype(dtype)])
    # A tolerance of 0 is a request to spend the budget.
    if epsilon < _FINEST_EPSILON or not found.tol or found.tol >= epsilon / 4:
        return found
    # TensorFloat-32 rounds the factors of products, half precision also the states.
    reachable = epsilon / 4 if dtype == "float32" else epsilon
    if not has_own_tolerance:
        return found.from_config({**found.get_config(), "tol": reachable})
    if not is_new:
        return found
    arithmetic, remedy = dtype, ""
    if dtype == "float32":
        arithmetic = "TensorFloat-32, in which GPUs multiply float32"
        remedy = ", or tf.config.experimental.enable_tensor_float_32_execution(False)"
    warnings.warn(
        f"The tolerance may be out of reach in {arithmetic}: rounding alone can leave "
        f"a relative residual of {epsilon / 4:.0e}, and samples then spend the whole "
        f"budget. Use tol={reachable:.0e} or more, or tol=None{remedy}. Received: "
        f"solver={found!r}.",
        stacklevel=4,
    )
    return found


def unquantized_policy(cell: keras.layers.Layer) -> keras.DTypePolicy:
    """Returns the dtype policy of a cell, without its quantization."""
    policy = cell.dtype_policy
    name = f"mixed_{policy.compute_dtype}"
    is_mixed = policy.compute_dtype != policy.variable_dtype
    return keras.DTypePolicy(name if is_mixed else policy.compute_dtype)
