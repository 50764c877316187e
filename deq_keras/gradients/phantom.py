"""The phantom gradient: a few damped steps from the equilibrium, back-propagated."""

from collections.abc import Callable

import keras

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count, check_positive_fraction
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import interpolate
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.gradients.forward import replace_gradient, solve_without_gradient
from deq_keras.gradients.gradient import (
    Attachment,
    EquilibriumGradient,
    SecondOrderLimit,
)
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

    second_order_limit = SecondOrderLimit(
        "its steps start at an equilibrium that it treats as a constant",
        is_refused=False,
    )

    def __init__(self, num_steps: int = 5, damping: float = 0.5) -> None:
        self.num_steps = check_count("num_steps", num_steps)
        self.damping = check_positive_fraction("damping", damping)

    def attach(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Attachment:
        solution = solve_without_gradient(problem, request, solver)
        linearization = problem.linearize(solution.point)
        failed = nonfinite.has_no_evaluation(solution)
        state, value = linearization.point, linearization.value
        for step in range(self.num_steps):
            value = problem(state) if step > 0 else value
            is_whole = self.damping == 1.0
            state = value if is_whole else interpolate(state, value, self.damping)
            failed |= nonfinite.failed_rows(state)
        value = replace_gradient(solution, state)
        return Attachment(value, solution, linearization, failed)

    def get_config(self) -> Config:
        return arguments_of(self, PhantomGradient)
