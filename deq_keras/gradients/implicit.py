"""The gradient of an equilibrium by the implicit function theorem."""

import keras
import tensorflow as tf
from keras import tree

from deq_keras import solvers
from deq_keras.gradients.forward import (
    linearize_equilibrium,
    solve_without_gradient,
    with_gradient_of,
)
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient


@keras.saving.register_keras_serializable("deq_keras")
class ImplicitGradient(EquilibriumGradient):
    """Differentiates z* = f(z*, u) by the implicit function theorem.

    The backward pass solves the adjoint equation for y, given the cotangent c of z*,

        y = (df/dz)^T y + c        with df/dz at z*,

    and back-propagates y through one evaluation of f. In compiled steps memory grows by
    what the solver stores, not with the number of forward evaluations; in eager mode
    TensorFlow's tape records the loops as well.

    The gradient is that of the exact equilibrium. Where the forward solve stopped far
    from it, df/dz is taken at the wrong point and the result is noise; watch the
    residual, and prefer `PhantomGradient` or an adjoint of few terms while it is
    large.

    Args:
        solver: the adjoint solver: a name, a config dict or a `FixedPointSolver`.
            `FixedPointIteration(max_iter=K, tol=None)` makes the gradient the Neumann
            series of K terms. `None`: the solver of the forward solve, with its whole
            budget. Defaults to `None`.

    Example:

    >>> gradient = deq_keras.gradients.ImplicitGradient("broyden")
    >>> u = tf.constant([[1.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(u)
    ...     equilibrium = gradient.solve(
    ...         lambda z, u: 0.5 * z + u, tf.zeros((1, 1)), u,
    ...         deq_keras.solvers.Anderson(tol=1e-6),
    ...     )
    >>> round(float(tape.gradient(equilibrium.value, u)[0, 0]), 3)
    2.0

    Reference:

    - Bai et al. (2019), "Deep Equilibrium Models", theorem 1.
    """

    def __init__(self, solver=None):
        self.solver = None if solver is None else _without_jitter(solvers.get(solver))

    def solve(
        self, fn, initial_state, injection, solver, record_adjoint=None, seed=None
    ):
        solution = solve_without_gradient(fn, initial_state, injection, solver, seed)
        linearization, _ = linearize_equilibrium(fn, solution, injection)
        carrier, linearization = _attach_adjoint(
            linearization, self.solver or solver, record_adjoint
        )
        value = with_gradient_of(solution, carrier)
        return Equilibrium(value, solution, linearization)

    def get_config(self):
        return {"solver": self.solver and solvers.serialize(self.solver)}


def _without_jitter(solver):
    if solver.max_iter_jitter:
        raise ValueError(
            "An adjoint solver must have max_iter_jitter=0: only the budget of the "
            f"forward solve is drawn. Received: solver={solver!r}."
        )
    return solver


def _attach_adjoint(linearization, solver, record_adjoint):
    """Passes the value through; replaces its cotangent by the adjoint solution.

    Also returns the linearization with a vjp that the adjoint waits for: it is not
    solved before its products, those of a penalty, have been differentiated. Both at
    once would need the memory of both at once.
    """

    @tf.custom_gradient
    def attach(zero, *value):
        def backward(end_of_penalty, *cotangent):
            with tf.control_dependencies([end_of_penalty]):
                cotangent = [tf.identity(leaf) for leaf in cotangent]
            cotangent = tree.pack_sequence_as(linearization.value, cotangent)
            adjoint = _solve_adjoint(linearization, cotangent, solver)
            if record_adjoint is not None:
                record_adjoint(adjoint)
            leaves = tree.flatten(adjoint.value)
            return (None,) + tuple(
                _first_order_only(tf.cast(leaf, output.dtype), output)
                for leaf, output in zip(leaves, value, strict=True)
            )

        return (tf.identity(zero), *map(tf.identity, value)), backward

    zero, *value = attach(tf.zeros(()), *tree.flatten(linearization.value))

    def vjp(vector):
        # The gradient of `zero` is the last tensor that a penalty's gradient forms.
        return linearization.vjp(
            tree.map_structure(lambda leaf: leaf + tf.cast(zero, leaf.dtype), vector)
        )

    value = tree.pack_sequence_as(linearization.value, value)
    return value, linearization._replace(vjp=vjp)


def _solve_adjoint(linearization, cotangent, solver):
    def in_solver_dtype(leaf):
        return tf.cast(leaf, tf.float64 if leaf.dtype == tf.float64 else tf.float32)

    # The sum is formed in the solver's precision, whatever the compute dtype is.
    cotangent = tree.map_structure(in_solver_dtype, cotangent)

    def adjoint(state):
        vector = tree.map_structure(
            lambda leaf, output: tf.cast(leaf, output.dtype),
            state,
            linearization.value,
        )
        return tree.map_structure(
            lambda product, constant: tf.cast(product, constant.dtype) + constant,
            linearization.vjp(vector),
            cotangent,
        )

    return solver.solve(adjoint, cotangent)


@tf.custom_gradient
def _first_order_only(adjoint, value):
    """Returns `adjoint`; raises where it is differentiated. `value` is there to connect
    it to all that the equilibrium depends on."""

    def refuse(*_):
        raise NotImplementedError(
            "ImplicitGradient is first-order: the gradient of an equilibrium was "
            "itself differentiated, and the adjoint solve has no derivative. Use "
            "UnrolledGradient or PhantomGradient for second derivatives."
        )

    del value
    return tf.identity(adjoint), refuse
