"""Back-propagation through every iteration of the solver."""

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import tree

from deq_keras import faults
from deq_keras.gradients.forward import linearize_equilibrium
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest
from deq_keras.structure import Nest


@keras.saving.register_keras_serializable(package="deq_keras")
class UnrolledGradient(EquilibriumGradient):
    """Differentiates the solver's own iterations.

    Exact for what was computed, converged or not, and differentiable to any order.
    A sample that fails is a constant. Memory grows with the number of evaluations. With
    `FixedPointIteration(max_iter=L, tol=None)` the layer is a weight-tied network of L
    layers, the papers' pretraining.

    Example:

    >>> gradient = deq_keras.gradients.UnrolledGradient()

    Reference:

    - Bai et al. (2019), "Deep Equilibrium Models", section 4 (pretraining).
    """

    is_of_steps = True

    def solve(
        self,
        fn: Callable[[Nest, Nest], Nest],
        request: SolveRequest,
        injection: Nest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[Solution], None] | None = None,
    ) -> Equilibrium:
        samples = faults.SampleFunction.of(fn)

        def run(
            fn: faults.BoundFunction, state: Nest, injection: Nest
        ) -> tuple[Nest, tf.Tensor, Solution]:
            solution = solver.solve_request(
                samples.of_states(injection, fn), request._replace(initial_state=state)
            )
            return solution.value, faults.has_failed(solution), solution

        value, solution = samples.differentiable(run, request.initial_state, injection)
        constant = tree.map_structure(tf.stop_gradient, solution)
        linearization, _ = linearize_equilibrium(samples, constant, injection)
        return Equilibrium(value, constant, linearization)
