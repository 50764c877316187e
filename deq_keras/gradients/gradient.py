"""The base of the strategies that differentiate an equilibrium."""

from collections.abc import Callable
from typing import NamedTuple

from deq_keras.core.linearization import Linearization
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Configured
from deq_keras.core.structure import Nest
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest


class Equilibrium(NamedTuple):
    """A solved and differentiable equilibrium.

    Attributes:
        value: Nest like the state. The layer's output, with the gradient: the last
            state for `TruncatedGradient` and `ReversibleGradient`, else f(z*).
        solution: The `Solution` of the forward solve. It carries no gradient.
        linearization: The `Linearization` of f at z*, with z* held constant.
    """

    value: Nest
    solution: Solution
    linearization: Linearization


class EquilibriumGradient(Configured):
    """A strategy to find and differentiate an equilibrium z* = f(z*, u).

    A strategy holds only its configuration and can be saved with `get_config`. Several
    layers can share it.

    Attributes:
        has_adjoint: Boolean. Whether the backward pass solves an adjoint equation and
            reports the solve to `record_adjoint`.
        assumes_convergence: Boolean. Whether the gradient assumes an exact equilibrium.
            If the forward solve stopped far from it, the gradient is then noise.
        differentiates_iterates: Boolean. Whether the gradient differentiates the
            computed iterates, whether or not they converged.
        uses_solver: Boolean. Whether `solve` runs the solver. Otherwise the strategy
            takes its own steps, which the layer logs as steps.
        stops_early: Boolean. Whether the steps have a tolerance, if the strategy does
            not use the solver.
        is_random: Boolean. Whether `solve` draws random numbers and needs a seed.
    """

    has_adjoint = False
    assumes_convergence = False
    differentiates_iterates = False
    uses_solver = True
    is_random = False
    stops_early = True

    def solve(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Equilibrium:
        """Returns the equilibrium with a gradient attached, in training.

        Args:
            problem: A `FixedPointProblem`. Tensors that its function captures also get
                gradients.
            request: A `SolveRequest` with an initial state. The initial state gets a
                gradient only from `UnrolledGradient`, `ReversibleGradient`, and
                `TruncatedGradient` without free steps: an equilibrium does not depend
                on the initial state. `seed` seeds the noise of the solver and all
                random draws of the strategy.
            solver: A `FixedPointSolver` for the forward solve.
            record_adjoint: Optional function, called in the backward pass with the
                `AdjointReport`. Strategies without an adjoint solve ignore it.

        Returns:
            An `Equilibrium`.
        """
        raise NotImplementedError

    def fewest_steps(self, state: Nest, solver: FixedPointSolver) -> int:
        """Returns the smallest number of steps of a training step.

        A strategy that does not use the solver overrides it.

        Args:
            state: Nest of `(batch, ...)` tensors, the state.
            solver: A `FixedPointSolver`, whose budget limits the steps.
        """
        del state, solver
        return 1

    def infer(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
    ) -> Equilibrium:
        """Returns the equilibrium outside of training.

        The solver spends its whole budget. The result has a gradient, for saliency maps
        and other uses of a trained model.

        Args:
            problem: See `solve`.
            request: See `solve`.
            solver: See `solve`.
        """
        return self.solve(problem, request, solver)
