"""What `"auto"` means: the components that suit a cell."""

import warnings
from typing import Any

import keras
import tensorflow as tf

from deq_keras import gradients, regularizers, solvers
from deq_keras.core.rounding import product_epsilon
from deq_keras.core.serialization import Config
from deq_keras.layers.equilibrium.cell_problem import declares

# The truncated gradient differentiates up to 12 steps after free steps. A solver with
# less than twice this budget would take fewer steps than most training steps.
_TRUNCATED_BUDGET = 24

# The rounding of finer arithmetic is below all common tolerances.
_FINEST_EPSILON = 2.0**-10


def choose_components(
    cell: keras.layers.Layer,
    solver: str | Config | solvers.FixedPointSolver,
    gradient: str | Config | gradients.EquilibriumGradient,
    regularizer: str | Config | regularizers.EquilibriumRegularizer | None,
) -> tuple[Any, Any, Any]:
    """Returns solver, gradient and regularizer of a layer.

    `"auto"` selects a component that suits the cell and the other components: training
    and inference must compute the same function. The study "defaults" chose the
    truncated gradient, which also trains tasks that propagate information over long
    distances (docs/guides/choose.md, "The defaults"). A cell can have defaults of its
    own, see `EquilibriumCell`.

    Args:
        cell: The cell of the layer.
        solver: See `DEQ`.
        gradient: See `DEQ`.
        regularizer: See `DEQ`.
    """
    if gradient == "auto":
        gradient = getattr(cell, "default_gradient", "auto")
    if regularizer == "auto":
        regularizer = getattr(cell, "default_regularizer", "auto")
    is_monotone = declares(cell, "operator_splitting")
    if gradient == "auto":
        gradient = "implicit" if is_monotone else _gradient_of_solver(solver)
    gradient = gradients.get(gradient)
    defaults: tuple[str, str | None]
    if gradient.differentiates_iterates:
        # Takes the same plain steps as in training: Anderson's mixing stalls on tasks
        # that propagate information.
        defaults = ("fixed_point_iteration", "residual")
    elif is_monotone:
        # A monotone cell has an equilibrium that this solver finds, without a penalty.
        defaults = ("peaceman_rachford", None)
    else:
        defaults = ("anderson", "contraction")
    has_own_tolerance = solver != "auto" and not isinstance(solver, str)
    if solver == "auto" and not gradient.differentiates_iterates:
        solver = getattr(cell, "default_solver", "auto")
    solver = solvers.get(defaults[0] if solver == "auto" else solver)
    # Monotone cells are solved in float32 or better, regardless of their dtype.
    dtype = "float32" if is_monotone else cell.compute_dtype
    regularizer = defaults[1] if regularizer == "auto" else regularizer
    solver = _with_reachable_tolerance(solver, dtype, has_own_tolerance)
    return solver, gradient, regularizer


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
    is_iteration = type(solver).step is solvers.FixedPointIteration.step
    return is_iteration and getattr(solver, "patience", None) is None


def _with_reachable_tolerance(
    found: solvers.FixedPointSolver, dtype: str, has_own_tolerance: bool
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
