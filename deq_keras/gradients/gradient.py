"""The base of the strategies that differentiate an equilibrium."""

from collections.abc import Callable
from typing import NamedTuple

from deq_keras.linearization import Linearization
from deq_keras.serialization import Configured
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest
from deq_keras.structure import Nest


class Equilibrium(NamedTuple):
    """A solved and differentiable equilibrium.

    Attributes:
        value: Nest like the state. What a layer returns, with the gradient: f(z*) of
            all strategies but `TruncatedGradient`.
        solution: The `Solution` of the forward solve; carries no gradient.
        linearization: The `Linearization` of f at z*, with z* held constant.
    """

    value: Nest
    solution: Solution
    linearization: Linearization


class EquilibriumGradient(Configured):
    """How an equilibrium z* = f(z*, u) is found and differentiated.

    A strategy holds only its configuration, round-trips through `get_config`, and may
    be shared by layers.

    Attributes:
        has_adjoint: Boolean. Whether the backward pass solves an adjoint equation, and
            `solve` records it.
        needs_equilibrium: Boolean. Whether the gradient is that of an exact
            equilibrium, and noise where the forward solve stopped far from one.
        is_of_steps: Boolean. Whether the gradient is that of the steps that were taken,
            wherever they led, and does not assume an equilibrium.
        is_random: Boolean. Whether `solve` draws, and needs a seed.
    """

    has_adjoint = False
    needs_equilibrium = False
    is_of_steps = False
    is_random = False

    def solve(
        self,
        fn: Callable[[Nest, Nest], Nest],
        request: SolveRequest,
        injection: Nest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[Solution], None] | None = None,
    ) -> Equilibrium:
        """Returns the equilibrium of `fn` with a gradient attached, in training.

        Args:
            fn: Function `(state, injection) -> state`, or a
                `deq_keras.faults.SampleFunction` of one. Tensors that it captures get
                their gradients too.
            request: A `SolveRequest`: the initial state, and the budget of the forward
                solve. The initial state gets no gradient, except from
                `UnrolledGradient` and from `TruncatedGradient` without free steps: an
                equilibrium does not depend on where the solve started. `seed` draws
                the noise of the solver, and what a gradient that `is_random` draws.
            injection: Nest of tensors, constant during the solve.
            solver: A `FixedPointSolver` for the forward solve.
            record_adjoint: Optional function, called in the backward pass with the
                `Solution` of the adjoint solve. Strategies without one ignore it.

        Returns:
            An `Equilibrium`.
        """
        raise NotImplementedError

    def infer(
        self,
        fn: Callable[[Nest, Nest], Nest],
        request: SolveRequest,
        injection: Nest,
        solver: FixedPointSolver,
    ) -> Equilibrium:
        """Returns the equilibrium of `fn` outside of training: that of the solver with
        its whole budget, with a gradient for those who ask for one."""
        return self.solve(fn, request, injection, solver)
