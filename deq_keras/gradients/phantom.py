"""The phantom gradient: a few damped steps from the equilibrium, back-propagated."""

import keras
import tensorflow as tf
from keras import tree

from deq_keras.checks import check_count, check_fraction
from deq_keras.faults import SampleFunction, any_rows
from deq_keras.gradients.forward import (
    linearize_equilibrium,
    solve_without_gradient,
    with_gradient_of,
)
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient
from deq_keras.solvers import DIVERGED
from deq_keras.structure import finite_rows


@keras.saving.register_keras_serializable("deq_keras")
class PhantomGradient(EquilibriumGradient):
    """Differentiates `num_steps` damped applications of f that start at z*.

        h_0 = z* (a constant),    h_{t+1} = (1 - damping) h_t + damping f(h_t, u)

    An approximation of the implicit gradient that needs no adjoint solve, stays
    bounded where the forward solve has not converged, and keeps `num_steps`
    evaluations in memory. The value is f(z*), as with the other strategies, not h_k:
    the two meet at an equilibrium. `num_steps=1, damping=1.0` is the Jacobian-free
    (one-step) gradient.

    Args:
        num_steps: int >= 1. Steps that are back-propagated. Defaults to `5`.
        damping: float in (0, 1]. The weight of the new value. Defaults to `0.5`.

    Example:

    >>> gradient = deq_keras.gradients.PhantomGradient(num_steps=1, damping=1.0)

    Reference:

    - Geng et al. (2021), "On Training Implicit Models", section 3.
    - Fung et al. (2022), "JFB: Jacobian-Free Backpropagation for Implicit Networks".
    """

    def __init__(self, num_steps=5, damping=0.5):
        self.num_steps = check_count("num_steps", num_steps)
        self.damping = check_fraction("damping", damping)

    def solve(
        self, fn, initial_state, injection, solver, record_adjoint=None, seed=None
    ):
        fn = SampleFunction.of(fn)
        solution = solve_without_gradient(fn, initial_state, injection, solver, seed)
        linearization, injection = linearize_equilibrium(fn, solution, injection)
        first = self._damped(linearization.point, linearization.value)

        def run(state, injection):
            for _ in range(self.num_steps - 1):
                state = self._damped(state, fn(state, injection))
            # A sample that fails on the way keeps its first step: f is finite there.
            has_failed = tf.equal(solution.status, DIVERGED) | ~finite_rows(state)
            return any_rows(has_failed, first, state), has_failed, None

        if self.num_steps > 1:
            first, _ = fn.differentiable(run, first, injection)
        value = with_gradient_of(solution, first)
        return Equilibrium(value, solution, linearization)

    def get_config(self):
        return {"num_steps": self.num_steps, "damping": self.damping}

    def _damped(self, old, new):
        def mix(old, new):
            weight = tf.constant(self.damping, new.dtype)
            return new if self.damping == 1.0 else old + weight * (new - old)

        return tree.map_structure(mix, old, new)
