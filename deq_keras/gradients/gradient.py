"""The base of the strategies that differentiate an equilibrium."""

from typing import Any, NamedTuple

from deq_keras.linearization import Linearization
from deq_keras.solvers import Solution


class Equilibrium(NamedTuple):
    """A solved and differentiable equilibrium.

    Attributes:
        value: nest like the state. f(z*), which carries the gradient.
        solution: the `Solution` of the forward solve; carries no gradient.
        linearization: the `Linearization` of f at z*, with z* held constant.
    """

    value: Any
    solution: Solution
    linearization: Linearization


class EquilibriumGradient:
    """How an equilibrium z* = f(z*, u) is found and differentiated.

    A strategy holds only its configuration, round-trips through `get_config`, and may
    be shared by layers.
    """

    def solve(
        self, fn, initial_state, injection, solver, record_adjoint=None, seed=None
    ):
        """Returns the equilibrium of `fn` with a gradient attached.

        Args:
            fn: function `(state, injection) -> state`, or a
                `deq_keras.faults.SampleFunction` of one. Tensors that it captures get
                their gradients too.
            initial_state: nest of floating-point tensors `(batch, ...)`. Gets no
                gradient, but of `UnrolledGradient`: where a search that arrives began,
                the equilibrium near it does not change.
            injection: nest of tensors, constant during the solve.
            solver: a `FixedPointSolver` for the forward solve.
            record_adjoint: optional function, called in the backward pass with the
                `Solution` of the adjoint solve. Strategies without one ignore it.
            seed: optional int32 tensor of shape `(2,)`. Draws the budget of the forward
                solve, if the solver has a `max_iter_jitter`.

        Returns:
            An `Equilibrium`.
        """
        raise NotImplementedError

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def __repr__(self):
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({arguments})"
