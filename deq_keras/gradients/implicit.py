"""The gradient of an equilibrium by the implicit function theorem."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras import solvers
from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.graphs import is_in_control_flow
from deq_keras.core.internals import run_with
from deq_keras.core.linearization import Linearization
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest, at_least_float32
from deq_keras.gradients import second_order
from deq_keras.gradients.adjoint_report import AdjointReport, adjoint_report
from deq_keras.gradients.forward import (
    LinearFunction,
    replace_gradient,
    solve_without_gradient,
)
from deq_keras.gradients.gradient import (
    Attachment,
    EquilibriumGradient,
    SecondOrderLimit,
)
from deq_keras.solvers import FixedPointSolver, LoopOptions, SolveRequest


@keras.saving.register_keras_serializable(package="deq_keras")
class ImplicitGradient(EquilibriumGradient):
    """Differentiates z* = f(z*, u) by the implicit function theorem.

    The backward pass solves the adjoint equation for y, given the cotangent c of z*,

        y = (df/dz)^T y + c        with df/dz at z*,

    and back-propagates y through one evaluation of f. In compiled steps, memory holds
    only what the solver stores, regardless of the number of forward evaluations. In
    eager mode, TensorFlow's tape also records the loops.

    The gradient assumes an exact equilibrium. If the forward solve stopped far from it,
    df/dz is evaluated at the wrong point and the gradient is noise. The layer logs the
    residual and the estimated gradient error. If they are large, prefer
    `TruncatedGradient` or `NeumannGradient`.

    Within two nested tapes, it has a second derivative, by two further linear solves.
    In a `tf.function`, open both tapes within the function.

    Args:
        solver: Adjoint solver: a name, a config dict or a `FixedPointSolver`. `GMRES`
            needs the fewest products with J. `FixedPointIteration(max_iter=K,
            tol=None)` computes a Neumann series of K terms. Defaults to `None`, the
            solver of the forward solve, with its whole budget.

    Example:

    >>> gradient = deq_keras.gradients.ImplicitGradient("broyden")
    >>> u = tf.constant([[1.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(u)
    ...     equilibrium = gradient.solve(
    ...         deq_keras.solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, u),
    ...         deq_keras.solvers.SolveRequest(tf.zeros((1, 1))),
    ...         deq_keras.solvers.Anderson(tol=1e-6),
    ...     )
    >>> round(float(tape.gradient(equilibrium.value, u)[0, 0]), 3)
    2.0

    Reference:

    - Bai et al. (2019), "Deep Equilibrium Models", theorem 1.
    """

    has_adjoint = True
    assumes_convergence = True
    second_order_limit = SecondOrderLimit(
        "it was traced without two tapes, or f reads a tensor that is neither a weight "
        "nor in the injection; in a `tf.function`, open both tapes within the function"
    )

    def __init__(self, solver: str | Config | FixedPointSolver | None = None) -> None:
        self.solver = None if solver is None else solvers.get(solver)

    def attach(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Attachment:
        # The derivative of the equilibrium is dz*/du = (I - J)^-1 df/du.
        #
        # 1. Solve z* = f(z*, u). Nothing of the loop is differentiated or stored.
        # 2. Evaluate f once more at the constant z*, with a gradient in u and the
        #    weights: the tape of this evaluation multiplies a cotangent by df/du.
        # 3. Pass its value through an identity whose backward pass replaces the
        #    cotangent c by the solution y of y = J^T y + c.
        # 4. The output has the value z* and the gradient of step 3.
        solution = solve_without_gradient(problem, request, solver)
        adjoint_solver = self.solver or solver
        # TensorFlow cannot update a metric in the gradient of a branch or a loop.
        is_recorded = record_adjoint is not None and not is_in_control_flow()

        def solve_adjoint(linearization: Linearization, cotangent: Nest) -> Nest:
            # Accumulates in the solver's precision, regardless of the dtype of f.
            constant = tree.map_structure(at_least_float32, cotangent)
            # The adjoint equation is a fixed-point problem, so any solver can solve it.
            # It starts at c, the first term of the Neumann series.
            adjoint = adjoint_solver.solve(
                FixedPointProblem(_AdjointFunction(linearization, problem), constant),
                SolveRequest(constant, loop=LoopOptions(records_trace=False)),
            )
            outputs = tree.flatten(linearization.value)
            slopes = [
                nonfinite.with_overflow(adjoint, tf.cast(leaf, output.dtype))
                for leaf, output in zip(
                    tree.flatten(adjoint.value), outputs, strict=True
                )
            ]
            if is_recorded and record_adjoint is not None:
                report = adjoint_report(linearization, constant, adjoint)
                slopes = run_with(slopes, lambda: record_adjoint(report))
            return tree.pack_sequence_as(linearization.value, slopes)

        twice = second_order.equilibrium(
            problem, solution, adjoint_solver, solve_adjoint
        )
        if twice is not None:
            return Attachment(twice, solution, is_twice_differentiable=True)
        linearization = problem.linearize(solution.point)

        def attach(*value: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
            def backward(*cotangent: tf.Tensor) -> list[tf.Tensor]:
                nest = tree.pack_sequence_as(linearization.value, [*cotangent])
                return [*tree.flatten(solve_adjoint(linearization, nest))]

            return [*map(tf.identity, value)], backward

        leaves = custom_gradient(attach)(*tree.flatten(linearization.value))
        carrier = tree.pack_sequence_as(linearization.value, leaves)
        value = replace_gradient(solution, carrier)
        return Attachment(value, solution, linearization)

    def get_config(self) -> Config:
        return {"solver": self.solver and solvers.serialize(self.solver)}


class _AdjointFunction(LinearFunction):
    """The function (y, c) -> J^T y + c, with the Jacobian J of f at z*.

    Attributes:
        linearization: The `Linearization` of f at z*.
        problem: The `FixedPointProblem` of f.
    """

    def __init__(
        self, linearization: Linearization, problem: FixedPointProblem
    ) -> None:
        super().__init__(linearization.vjp, linearization.value)
        self.linearization = linearization
        self.problem = problem

    def splitting(self, cotangent: Nest) -> Any:
        """Returns the splitting of the linear equation, if f has one."""
        splitting = self.problem.splitting
        if splitting is None:
            return None
        return splitting.adjoint(self.linearization.point, cotangent)
