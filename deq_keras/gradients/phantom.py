"""The phantom gradient: a few damped steps from the equilibrium, back-propagated."""

from collections.abc import Callable

import keras

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count, check_positive_fraction
from deq_keras.core.custom_gradient import guard_second_order
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import interpolate
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.gradients.forward import (
    replace_gradient,
    solve_without_gradient,
)
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient
from deq_keras.solvers import FixedPointSolver, SolveRequest


@keras.saving.register_keras_serializable(package="deq_keras")
class PhantomGradient(EquilibriumGradient):
    """Differentiates `num_steps` damped applications of f that start at z*.

        h_0 = z* (a constant),    h_{t+1} = (1 - damping) h_t + damping f(h_t, u)

    This approximation of the implicit gradient needs no adjoint solve, is bounded even
    if the forward solve has not converged, and keeps `num_steps` evaluations in memory.
    The value is f(z*), as with the other strategies, not h_k; at an equilibrium, the
    two agree. `num_steps=1, damping=1.0` is the Jacobian-free (one-step) gradient.
    Second derivatives ignore the change of z*, and warn.

    Args:
        num_steps: Positive integer. Number of differentiated steps. Defaults to `5`.
        damping: Float in (0, 1]. The weight of the new value. Defaults to `0.5`.

    Example:

    >>> gradient = deq_keras.gradients.PhantomGradient(num_steps=1, damping=1.0)

    Reference:

    - Geng et al. (2021), "On Training Implicit Models", section 3.
    - Fung et al. (2022), "JFB: Jacobian-Free Backpropagation for Implicit Networks".
    """

    def __init__(self, num_steps: int = 5, damping: float = 0.5) -> None:
        self.num_steps = check_count("num_steps", num_steps)
        self.damping = check_positive_fraction("damping", damping)

    def solve(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Equilibrium:
        return solve_with_steps(
            problem, request, solver, self.num_steps, self.damping, type(self).__name__
        )

    def get_config(self) -> Config:
        return arguments_of(self, PhantomGradient)


def solve_with_steps(
    problem: FixedPointProblem,
    request: SolveRequest,
    solver: FixedPointSolver,
    num_steps: int,
    damping: float,
    name: str,
) -> Equilibrium:
    """Solves, and attaches the gradient of damped steps from the solution.

    Args:
        problem: See `EquilibriumGradient.solve`.
        request: See `EquilibriumGradient.solve`.
        solver: See `EquilibriumGradient.solve`.
        num_steps: See `PhantomGradient`.
        damping: See `PhantomGradient`.
        name: String. Name of the gradient in messages.
    """
    solution = solve_without_gradient(problem, request, solver)
    gate = nonfinite.GradientGate()
    gated = problem.gated(gate)
    linearization = gated.linearize(solution.point)
    failed = nonfinite.has_no_evaluation(solution)
    state, value = linearization.point, linearization.value
    for step in range(num_steps):
        value = gated(state) if step > 0 else value
        state = value if damping == 1.0 else interpolate(state, value, damping)
        failed |= nonfinite.failed_rows(state)
    gate.close_if(failed, problem.is_usable)
    reason = "its steps start at an equilibrium that it treats as a constant"
    carrier = guard_second_order(state, name, reason, is_refused=False)
    failed = nonfinite.has_no_evaluation(solution)
    linearization = nonfinite.usable_linearization(linearization, failed)
    return Equilibrium(replace_gradient(solution, carrier), solution, linearization)
