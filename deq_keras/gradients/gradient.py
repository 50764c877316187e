"""The base of the strategies that differentiate an equilibrium."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import guard_second_order
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


class Attachment(NamedTuple):
    """What a gradient attaches to a solution; the base class does the rest.

    Attributes:
        value: See `Equilibrium`.
        solution: See `Equilibrium`.
        linearization: The `Linearization` of f at z*, if the gradient needs one.
            `None`: f is evaluated once more.
        failed: Boolean tensor `(batch,)`. Samples for which f was non-finite where the
            gradient differentiates it. `None`: samples without a finite evaluation.
        excluded: Boolean tensor `(batch,)`. Samples that do not count in the penalty of
            a regularizer. `None`: samples without a finite evaluation.
        is_twice_differentiable: Boolean. Whether the value has second derivatives in
            spite of a `second_order_limit`.
    """

    value: Nest
    solution: Solution
    linearization: Linearization | None = None
    failed: tf.Tensor | None = None
    excluded: tf.Tensor | None = None
    is_twice_differentiable: bool = False


class SecondOrderLimit(NamedTuple):
    """Why the second derivatives of a gradient are not those of the equilibrium.

    Attributes:
        reason: String. A clause for messages, such as "its steps are constants".
        is_refused: Boolean. Whether a second derivative raises an error. Otherwise it
            is an approximation, and warns.
    """

    reason: str
    is_refused: bool = True


class EquilibriumGradient(Configured):
    """A strategy to find and differentiate an equilibrium z* = f(z*, u).

    A strategy holds only its configuration and can be saved with `get_config`. Several
    layers can share it. A subclass implements `attach`. The base class handles failed
    samples, provides the linearization for penalties, and guards second derivatives.

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
        second_order_limit: A `SecondOrderLimit`, or `None` if second derivatives are
            right.

    Example: the gradient of one evaluation of f at the equilibrium.

    >>> from deq_keras.gradients import Attachment, SecondOrderLimit
    >>> from deq_keras.gradients import replace_gradient, solve_without_gradient
    >>> @keras.saving.register_keras_serializable("my_package")
    ... class OneStepGradient(deq_keras.gradients.EquilibriumGradient):
    ...     second_order_limit = SecondOrderLimit("it treats z* as a constant")
    ...
    ...     def attach(self, problem, request, solver, record_adjoint=None):
    ...         solution = solve_without_gradient(problem, request, solver)
    ...         linearization = problem.linearize(solution.point)
    ...         value = replace_gradient(solution, linearization.value)
    ...         return Attachment(value, solution, linearization)
    >>> deq_keras.testing.check_gradient(OneStepGradient, exact=False)
    """

    has_adjoint = False
    assumes_convergence = False
    differentiates_iterates = False
    uses_solver = True
    is_random = False
    stops_early = True
    second_order_limit: SecondOrderLimit | None = None

    def attach(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Attachment:
        """Solves, and attaches a gradient to the value.

        Args:
            problem: A `FixedPointProblem`. If a sample fails, its injection and its
                weights, and the initial state, get no gradient in this training step.
            request: See `solve`.
            solver: See `solve`.
            record_adjoint: See `solve`.

        Returns:
            An `Attachment`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement `attach(problem, request, solver, "
            "record_adjoint)`, which returns an `Attachment`."
        )

    def outside_training(self, solver: FixedPointSolver) -> "EquilibriumGradient":
        """Returns the gradient that `infer` uses. Defaults to this one.

        Args:
            solver: A `FixedPointSolver` for the forward solve.
        """
        del solver
        return self

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
        return self._solve(
            problem, request, solver, record_adjoint, type(self).__name__
        )

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
        gradient, name = self.outside_training(solver), type(self).__name__
        if gradient is not self:
            name += ", outside of training,"
        return gradient._solve(problem, request, solver, None, name)

    def fewest_steps(self, state: Nest, solver: FixedPointSolver) -> int:
        """Returns the smallest number of steps of a training step.

        A strategy that does not use the solver overrides it.

        Args:
            state: Nest of `(batch, ...)` tensors, the state.
            solver: A `FixedPointSolver`, whose budget limits the steps.
        """
        del state, solver
        return 1

    def _solve(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None,
        name: str,
    ) -> Equilibrium:
        """See `solve`. `name` is the gradient that the user chose, for messages."""
        # 1. Everything that `attach` differentiates passes through a gate, which closes
        # if a sample failed there.
        gate = nonfinite.GradientGate()
        request = request._replace(initial_state=gate(request.initial_state))
        found = self.attach(problem.through(gate), request, solver, record_adjoint)
        value, solution, linearization, failed, excluded, is_twice = found
        has_no_evaluation = nonfinite.has_no_evaluation(solution)
        failed = has_no_evaluation if failed is None else failed
        gate.close_if(failed, problem.is_usable)

        # 2. Another evaluation of f has a gate of its own: it fails for other samples.
        if linearization is None:
            gate = nonfinite.GradientGate()
            gate.close_if(has_no_evaluation, problem.is_usable)
            linearization = problem.through(gate).linearize(solution.point)
        excluded = has_no_evaluation if excluded is None else excluded
        linearization = nonfinite.usable_linearization(linearization, excluded)

        # 3. TensorFlow would return a wrong second derivative without a word.
        limit = self.second_order_limit
        if limit is not None and not is_twice:
            value = guard_second_order(value, name, limit.reason, limit.is_refused)
        return Equilibrium(value, solution, linearization)
