"""The base of the strategies that differentiate an equilibrium."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from deq_keras.linearization import Linearization
from deq_keras.serialization import Configured
from deq_keras.solvers import FixedPointSolver, Solution
from deq_keras.structure import Nest


class Equilibrium(NamedTuple):
    """A solved and differentiable equilibrium.

    Attributes:
        value: Nest like the state. f(z*), which carries the gradient.
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
    """

    has_adjoint = False
    needs_equilibrium = False

    def solve(
        self,
        fn: Callable[[Nest, Nest], Nest],
        initial_state: Nest,
        injection: Nest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[Solution], None] | None = None,
        budget: tf.Tensor | None = None,
    ) -> Equilibrium:
        """Returns the equilibrium of `fn` with a gradient attached.

        Args:
            fn: Function `(state, injection) -> state`, or a
                `deq_keras.faults.SampleFunction` of one. Tensors that it captures get
                their gradients too.
            initial_state: Nest of floating-point tensors `(batch, ...)`. Gets no
                gradient, but of `UnrolledGradient`: where a search that arrives began,
                the equilibrium near it does not change.
            injection: Nest of tensors, constant during the solve.
            solver: A `FixedPointSolver` for the forward solve.
            record_adjoint: Optional function, called in the backward pass with the
                `Solution` of the adjoint solve. Strategies without one ignore it.
            budget: Optional integer scalar tensor, at most the solver's `max_iter`:
                what the forward solve may spend.

        Returns:
            An `Equilibrium`.
        """
        raise NotImplementedError
