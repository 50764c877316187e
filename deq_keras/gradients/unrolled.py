"""Backpropagation through every iteration of the solver."""

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_optional_count
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.gradients.gradient import Attachment, EquilibriumGradient
from deq_keras.solvers import FixedPointSolver, SolveRequest


@keras.saving.register_keras_serializable(package="deq_keras")
class UnrolledGradient(EquilibriumGradient):
    """Differentiates the solver's own iterations.

    The gradient is exact for the computed iterations, whether or not they converged,
    and differentiable to any order. Memory grows with the number of evaluations.
    `FixedPointIteration(max_iter=L, tol=None)` makes the layer a weight-tied network of
    L layers, the papers' pretraining. Give `Anderson` a tolerance: mixtures of rounding
    errors have no useful derivative.

    Args:
        checkpoints: Positive integer c. The backward pass evaluates f a second time, so
            that memory holds c states of the solver's loop, with its history, and the
            activations of 1 / c of the budget. Applies to training only. Defaults to
            `None`: memory holds all activations.

    Example:

    >>> gradient = deq_keras.gradients.UnrolledGradient(checkpoints=5)

    Reference:

    - Bai et al. (2019), "Deep Equilibrium Models", section 4 (pretraining).
    """

    differentiates_iterates = True

    def __init__(self, checkpoints: int | None = None) -> None:
        self.checkpoints = check_optional_count("checkpoints", checkpoints)

    def attach(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Attachment:
        loop = request.loop._replace(checkpoints=self.checkpoints)
        solution = solver.solve(problem, request._replace(loop=loop))
        value = solution.value
        solution = tree.map_structure(tf.stop_gradient, solution)
        return Attachment(value, solution, failed=nonfinite.has_failed(solution))

    def outside_training(self, solver: FixedPointSolver) -> "UnrolledGradient":
        # The budget may be a tensor, and checkpoints need an integer.
        return UnrolledGradient()

    def get_config(self) -> Config:
        return arguments_of(self, UnrolledGradient)
