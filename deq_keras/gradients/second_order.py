"""An implicit gradient that can be differentiated once more."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.internals import is_watched, may_differentiate_twice
from deq_keras.core.linearization import Linearization, linearize
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest, at_least_float32
from deq_keras.gradients.forward import LinearFunction
from deq_keras.solvers import (
    FixedPointSolver,
    LoopOptions,
    OperatorSplitting,
    Solution,
    SolveRequest,
)

# Returns the solution y of the adjoint equation, in the dtypes of the state.
SolveAdjoint = Callable[[Linearization, Nest], Nest]


def equilibrium(
    problem: FixedPointProblem,
    solution: Solution,
    solver: FixedPointSolver,
    solve_adjoint: SolveAdjoint,
) -> Nest | None:
    """Returns the value of a solution with its first and second derivatives.

    Returns `None` unless two tapes, or a persistent one, watch what f reads (a function
    that is traced before the tapes exist cannot know of them), and also if f reads
    another tensor that a tape watches, which would lose its gradient.

    With J = df/dz and F = df/du at z*, for the injection and the weights u, the
    gradient of the equilibrium is

        g = F^T y        with    y = J^T y + c

    for a cotangent c. Let D[w, d] = J w + F d be the derivative of f along (w, d). For
    a cotangent d of g, the gradients of d^T g are

        w                             for c,    with  w = J w + F d
        r_u + F^T x                   for u,    with  x = J^T x + r_z
        (r_z, r_u)                    the gradient of y^T D[w, d] for (z, u)

    The second term of u is there because z* moves with u. So the first derivative
    solves one linear equation, and the second two others. No loop is differentiated.

    Args:
        problem: The `FixedPointProblem`.
        solution: A `Solution` without gradient.
        solver: Solves w = J w + F d.
        solve_adjoint: Function from a `Linearization` and a cotangent c to y.

    Reference:

    - Christianson (1994), "Reverse accumulation and attractive fixed points".
    """
    sources = nonfinite.differentiable([problem.injection, problem.weights])
    if not may_differentiate_twice(sources):
        return None
    num_leaves = len(tree.flatten(solution.point))

    def evaluate(state_and_sources: Any) -> Nest:
        state, tensors = state_and_sources
        return _with_sources(problem, tensors)(state)

    # Nothing of this evaluation is recorded: the tapes see its results.
    at = linearize(evaluate, (solution.point, sources))
    if is_watched(tree.flatten(at.value)):
        return None
    point, constants = at.point
    in_state = Linearization(point, at.value, lambda v: at.vjp(v)[0], problem.mask)

    def gradient_of(cotangent: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
        """Returns F^T y for a cotangent, as an operation with a gradient."""

        def forward(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
            # Tapes see the results only, and nothing of the loop.
            leaves = (*map(tf.stop_gradient, inputs[:num_leaves]),)
            adjoint = solve_adjoint(in_state, tree.pack_sequence_as(point, leaves))
            products = [*map(tf.convert_to_tensor, at.vjp(adjoint)[1])]

            def backward(*directions: tf.Tensor) -> list[tf.Tensor]:
                constant = [*map(tf.stop_gradient, directions)]
                return once(*_second(leaves, adjoint, constant))

            return products, backward

        results: list[tf.Tensor] = custom_gradient(forward)(*cotangent, *sources)
        return [*results]

    def _second(
        cotangent: tuple[tf.Tensor, ...], adjoint: Nest, directions: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        if isinstance(solver, OperatorSplitting):
            raise NotImplementedError(
                f"{type(solver).__name__} solves adjoint equations, but not the "
                "equation w = J w + e of a second derivative. Use "
                f"ImplicitGradient('gmres'). Received: {solver!r}."
            )
        zero = tree.map_structure(tf.zeros_like, point)
        image = tree.map_structure(at_least_float32, at.jvp((zero, directions)))
        tangent = solver.solve(
            FixedPointProblem(LinearFunction(in_state.jvp, point), image),
            SolveRequest(image, loop=LoopOptions(records_trace=False)),
        )
        tangents = [
            nonfinite.with_overflow(tangent, tf.cast(leaf, like.dtype))
            for leaf, like in zip(tree.flatten(tangent.value), cotangent, strict=True)
        ]
        leaves = [*tree.flatten(point), *constants]
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(leaves)
            with tf.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(leaves)
                value = evaluate((point, constants))
            products = inner.gradient(
                tree.flatten(value), leaves, tree.flatten(adjoint), "zero"
            )
        moves = [
            tf.cast(move, leaf.dtype)
            for move, leaf in zip(tangents, tree.flatten(point), strict=True)
        ]
        slopes = outer.gradient(products, leaves, [*moves, *directions], "zero")
        of_point = [
            tf.cast(slope, like.dtype)
            for slope, like in zip(slopes[:num_leaves], cotangent, strict=True)
        ]
        moved = gradient_of(tuple(of_point))
        of_sources = [a + b for a, b in zip(slopes[num_leaves:], moved, strict=True)]
        return [*tangents, *of_sources]

    def once(*results: tf.Tensor) -> list[tf.Tensor]:
        """Returns second derivatives, which cannot be differentiated again."""

        def refuse(*_: tf.Tensor) -> None:
            raise NotImplementedError(
                "The gradient of an equilibrium has no third derivatives. Use "
                "UnrolledGradient, and call the layer with `training=True`."
            )

        def forward(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
            return [*map(tf.identity, inputs[: len(results)])], refuse

        return [*custom_gradient(forward)(*results, *sources)]

    def attach(*_: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        value = [*map(tf.identity, tree.flatten(solution.value))]
        return value, lambda *cotangent: gradient_of(cotangent)

    leaves = custom_gradient(attach)(*sources)
    return tree.pack_sequence_as(solution.value, leaves)


def _with_sources(
    problem: FixedPointProblem, tensors: list[tf.Tensor]
) -> FixedPointProblem:
    """Returns the problem for other tensors in place of its sources."""
    others = iter(tensors)

    def replace(leaf: Any) -> Any:
        if leaf is None:
            return None
        dtype = tf.convert_to_tensor(leaf).dtype
        return next(others) if dtype.is_floating or dtype.is_complex else leaf

    injection, weights = tree.map_structure(
        replace, (problem.injection, problem.weights)
    )
    return problem.bound(injection, weights=weights)
