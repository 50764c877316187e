"""Backpropagation through steps that the backward pass inverts."""

import math
from collections.abc import Callable

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_open_fraction, check_optional_count
from deq_keras.core.custom_gradient import without_variables
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.gradients.gradient import (
    Attachment,
    EquilibriumGradient,
    SecondOrderLimit,
)
from deq_keras.gradients.neumann import NeumannGradient
from deq_keras.gradients.pair_steps import InverseSteps, PairSteps
from deq_keras.solvers import (
    FixedPointIteration,
    FixedPointSolver,
    SolveRequest,
)

# Largest relative error of a pair that the backward pass reconstructs in float32.
_LARGEST_ERROR = 1e-5
_ROUNDING = 2.0**-24
# Terms of the Neumann series outside of training.
_NUM_TERMS = 12


@keras.saving.register_keras_serializable(package="deq_keras")
class ReversibleGradient(EquilibriumGradient):
    """Differentiates an iteration of two states whose steps can be inverted.

        y' = (1 - beta) y + beta f(z),    z' = (1 - beta) z + beta f(y')

    Both states start at the initial state; the output is the last z. At an equilibrium
    y = z = f(z). The gradient is exact for the computed steps, whether or not they
    converged, with respect to the weights, the injection and the initial state. The
    backward pass reconstructs the states from the last ones. Memory thus holds few
    states and the activations of one evaluation.

    An inverse step amplifies rounding errors by up to (1 - beta)^-2. Therefore a pair
    is stored every `checkpoint_every` steps, and the reconstruction continues from it.

    A solve has N steps of two evaluations, and one evaluation for the residual. Each
    sample stops at the tolerance or the budget of the solver, which must be a
    `FixedPointIteration`: 2 N + 1 is at most its `max_iter`. Its damping does not apply
    to the steps. A step multiplies an error along an eigenvector of df/dz with
    eigenvalue a by a root of r^2 - (2 (1 - beta) + beta^2 a^2) r + (1 - beta)^2. It
    depends on a^2 only, so negative eigenvalues converge like positive ones.

    Outside of training, only the solver runs. The gradient is a `NeumannGradient`.

    Args:
        beta: Float in (0, 1). Weight of f in each half step. Larger values converge
            faster if df/dz has positive eigenvalues, and need more stored pairs.
            Defaults to `0.8`.
        checkpoint_every: Positive integer or `None`. Steps between two stored pairs.
            Larger values save memory and lose precision. `None`: the largest K for
            which the K - 1 inverse steps between two stored pairs keep float32 states
            to 1e-5: (1 - beta)^(-2 (K - 1)) 2^-24 <= 1e-5. That is 4 for a `beta` of
            0.5, and 2 for 0.8. Defaults to `None`.

    Raises:
        ValueError: If `beta` is not in (0, 1). `solve` raises it if the solver is not a
            `FixedPointIteration`, uses noise or patience, or has a `max_iter` below 3.

    Example:

    >>> gradient = deq_keras.gradients.ReversibleGradient(beta=0.5)
    >>> u = tf.constant([[1.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(u)
    ...     equilibrium = gradient.solve(
    ...         deq_keras.solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, u),
    ...         deq_keras.solvers.SolveRequest(tf.zeros((1, 1))),
    ...         deq_keras.solvers.FixedPointIteration(max_iter=3, tol=None),
    ...     )
    >>> float(tape.gradient(equilibrium.value, u)[0, 0])  # beta (1 + 0.5 beta)
    0.625

    Reference:

    - McCallum et al. (2025), "Reversible Deep Equilibrium Models".
    """

    differentiates_iterates = True
    second_order_limit = SecondOrderLimit(
        "its backward pass inverts steps, and is not differentiated"
    )

    def __init__(self, beta: float = 0.8, checkpoint_every: int | None = None) -> None:
        self.beta = check_open_fraction("beta", beta)
        self.checkpoint_every = check_optional_count(
            "checkpoint_every", checkpoint_every
        )

    def attach(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Attachment:
        max_iter = solver.max_iter if request.max_iter is None else request.max_iter
        _check_solver(solver, max_iter)
        # 1. A step advances a pair of states and evaluates f twice. The last evaluation
        # of the budget measures the residual.
        max_steps = (max_iter - 1) // 2
        limit = request.loop.limit
        largest = max_steps if limit is None else (limit - 1) // 2
        injection, weights, start = tree.map_structure(
            tf.stop_gradient,
            (problem.injection, problem.weights, request.initial_state),
        )
        # 2. Step forward without a gradient, and store every K-th pair.
        steps = PairSteps(
            problem.bound(injection, weights=weights),
            solver.stopping_rule(request._replace(initial_state=start)),
            self.beta,
            self.checkpoint_every or _interval(self.beta),
            tf.maximum(largest, 1) if tf.is_tensor(largest) else largest,
        )
        pairs, solution = without_variables(steps.run, max_steps)
        # 3. The backward pass inverts the steps between two stored pairs, and
        # differentiates each of them.
        sources = problem.sources(request.initial_state)
        steps = steps._replace(problem=problem)
        inverse = InverseSteps(steps, pairs, solution.point, sources)
        value = inverse.attach(request.initial_state)
        return Attachment(value, solution, failed=nonfinite.has_failed(solution))

    def outside_training(self, solver: FixedPointSolver) -> NeumannGradient:
        return NeumannGradient(_NUM_TERMS)

    def get_config(self) -> Config:
        return arguments_of(self, ReversibleGradient)


def _check_solver(solver: FixedPointSolver, max_iter: int | tf.Tensor) -> None:
    if (
        not isinstance(solver, FixedPointIteration)
        or solver.noise > 0
        or solver.patience is not None
    ):
        raise ValueError(
            "ReversibleGradient takes damped steps of its own, with the tolerance and "
            "the budget of the solver. Use solver=FixedPointIteration(max_iter, tol) "
            "without `noise` and `patience`; for another solver, use UnrolledGradient "
            f"or ImplicitGradient. Received: solver={solver!r}."
        )
    if not tf.is_tensor(max_iter) and max_iter < 3:
        raise ValueError(
            "A reversible step evaluates f twice, and the residual needs one more "
            "evaluation. Use a solver with max_iter >= 3. Received: "
            f"max_iter={max_iter}."
        )


def _interval(beta: float) -> int:
    """Returns the number of steps between two stored pairs."""
    amplification = -2.0 * math.log(1.0 - beta)
    return 1 + int(math.log(_LARGEST_ERROR / _ROUNDING) / amplification)
