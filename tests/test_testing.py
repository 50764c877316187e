"""The checks of plug-ins: components of the library pass, and broken ones are named.

Tests of the solvers, gradients and dense cells of the library call the checks.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import gradients, layers, regularizers, solvers, testing
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import slow

register = keras.saving.register_keras_serializable("deq_keras_tests.broken")
INPUTS = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
SEQUENCES = np.random.default_rng(1).normal(size=(3, 4, 5)).astype("float32")
MAPS = np.random.default_rng(2).normal(size=(3, 3, 2, 5)).astype("float32")
SQUARES = np.random.default_rng(3).normal(size=(2, 4, 4, 4)).astype("float32")
EDGES = np.array([[[0, 1], [1, 2], [2, 0], [-1, -1], [-1, -1]]] * 3)
GRAPHS = {"features": SEQUENCES, "edges": EDGES}
MASK = np.arange(4) < np.array([[4], [3], [1]])


BOARD_MASK = MASK[:, :3, None] & MASK[:, None, :2]


@pytest.mark.parametrize(
    "cell, arguments, inputs, mask",
    [
        (TwoScaleCell, (3,), {"x": INPUTS[:, :2], "y": INPUTS[:, 2:]}, None),
        (layers.AutomatonCell, (3,), MAPS, BOARD_MASK),
        slow(layers.GraphCell, (3,), GRAPHS, None),
        slow(layers.MonotoneDenseCell, (3,), INPUTS, None),
        slow(layers.RecallCell, (3, 1), SEQUENCES, MASK),
        slow(layers.AttentionCell, (4, 2), SEQUENCES[..., :4], MASK),
        slow(layers.BoardCell, (3,), MAPS, BOARD_MASK),
        slow(layers.TransformerCell, (4, 2, 6), SEQUENCES, MASK),
        slow(layers.MultiscaleCell, ((4, 4), 1, 2), SQUARES, None),
        slow(layers.ResidualBlockCell, (4, 1, 2), SQUARES, None),
        slow(layers.MonotoneMultiscaleCell, ((2, 2),), MAPS[:, :2], None),
    ],
)
def test_cells_pass(cell, arguments, inputs, mask):
    testing.check_cell(functools.partial(cell, *arguments), inputs, mask)


@pytest.mark.parametrize("make", regularizers.ALL_OBJECTS)
def test_regularizers_pass(make):
    testing.check_regularizer(make)


def _fails(match, check, *arguments, **options):
    with pytest.raises(AssertionError, match=match):
        check(*arguments, **options)


class BrokenCell(TanhCell):
    def __init__(self, units=4, **kwargs):
        super().__init__(units, **kwargs)


@register
class ImpureCell(BrokenCell):
    calls = 0

    def call(self, state, injection):
        ImpureCell.calls += 1
        return super().call(state, injection) + 1e-3 * ImpureCell.calls


@register
class CoupledCell(BrokenCell):
    def inject(self, inputs):
        return super().inject(inputs - 0.1 * ops.mean(inputs, axis=0))


@register
class PaddingCell(BrokenCell):
    def call(self, state, injection):
        mean = ops.mean(injection, axis=1, keepdims=True)
        return super().call(state, injection) + 0.1 * mean


@register
class UnusedWeightCell(BrokenCell):
    def call(self, state, injection):
        return ops.tanh(0.1 * state + injection) + 0.0 * self.recurrent(state)


@register
class ForgetfulCell(BrokenCell):
    def __init__(self, units=4, shift=0.0, **kwargs):
        super().__init__(units, **kwargs)
        self.shift = shift

    def call(self, state, injection):
        return super().call(state, injection) + self.shift


@register
class MomentsCell(BrokenCell):
    def call(self, state, injection):
        state = super().call(state, injection)
        mean, variance = ops.moments(state, axes=[-1], keepdims=True)
        variance = ops.mean(ops.square(state - ops.stop_gradient(mean)), -1, True)
        return (state - mean) / ops.sqrt(variance + 0.1)


@register
class BoundedCell(BrokenCell):
    """Declares a constant: `factor` times the smallest one."""

    def __init__(self, units=4, factor=1.0, **kwargs):
        super().__init__(units, **kwargs)
        self.factor = factor

    def inject(self, inputs, training=False):
        return 0.01 * super().inject(inputs)

    def lipschitz_constant(self, injection):
        # The slope of tanh is 1 at the state 0.
        kernel = self.recurrent.kernel
        return self.factor * ops.max(ops.linalg.svd(kernel, compute_uv=False))

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


@register
class SinglePrecisionCell(BrokenCell):
    def __init__(self, units=4, **kwargs):
        super().__init__(units, **kwargs)
        self.recurrent.dtype_policy = "float32"


class UnregisteredCell(BrokenCell):
    pass


def test_cell_with_a_lipschitz_constant_passes():
    testing.check_cell(BoundedCell, INPUTS)


@pytest.mark.parametrize(
    "make, match",
    [
        (ImpureCell, "`ImpureCell` is not pure"),
        (CoupledCell, "`CoupledCell` lets a sample depend on another"),
        (UnusedWeightCell, "has no gradient for its weight `.*dense/kernel`"),
        (functools.partial(ForgetfulCell, shift=0.5), "after `load_model`"),
        (functools.partial(BoundedCell, 32, 0.9), "`BoundedCell` exceeds its `lip"),
        (MomentsCell, "other second derivatives than"),
        (UnregisteredCell, "is not registered with Keras"),
        (SinglePrecisionCell, "compute in the `dtype`.*dtype=self.dtype_policy"),
    ],
)
def test_broken_cell_is_named(make, match):
    _fails(match, testing.check_cell, make, INPUTS)


def test_cell_that_reads_padding_is_named():
    _fails("depends on padding", testing.check_cell, PaddingCell, SEQUENCES, MASK)


@register
class SpendthriftSolver(solvers.FixedPointIteration):
    """Ignores its budget."""

    def __init__(self, max_iter=30, tol=1e-3):
        super().__init__(max_iter, tol)

    def get_config(self):
        return {"max_iter": self.max_iter, "tol": self.tol}

    def solve(self, problem, request):
        return super().solve(problem, request._replace(max_iter=50))


@register
class BatchSolver(SpendthriftSolver):
    """Steps by the mean residual of the batch."""

    solve = solvers.FixedPointIteration.solve

    def step(self, evaluation, memory, num_evaluations):
        residual = evaluation.residual
        return evaluation.point + residual - 0.1 * tf.reduce_mean(residual, 0), memory


@register
class HastySolver(SpendthriftSolver):
    """Reports convergence early."""

    def solve(self, problem, request):
        request = request._replace(tol=0.9 if self.tol else self.tol)
        return solvers.FixedPointIteration.solve(self, problem, request)


@register
class StatefulSolver(SpendthriftSolver):
    solve = solvers.FixedPointIteration.solve

    def init(self, point, max_iter):
        self.last_shape = tuple(point.shape)
        return ()


@pytest.mark.parametrize(
    "make, match",
    [
        (SpendthriftSolver, "evaluates f 50 times with max_iter=1"),
        (BatchSolver, "solves a sample alone otherwise than in a batch"),
        (HastySolver, "does not find the equilibrium of 'scalar'"),
        (StatefulSolver, "keeps something between solves"),
    ],
)
def test_broken_solver_is_named(make, match):
    _fails(match, testing.check_solver, make, max_iter=150, zoo=["scalar"])


@register
class TwiceTheGradient(gradients.ImplicitGradient):
    factor = 2.0

    def solve(self, *arguments, **options):
        equilibrium = super().solve(*arguments, **options)
        value = equilibrium.value
        scaled = self.factor * value + tf.stop_gradient((1 - self.factor) * value)
        return equilibrium._replace(value=scaled)


@register
class AscentGradient(TwiceTheGradient):
    factor = -1.0


@pytest.mark.parametrize(
    "make, exact, match",
    [
        (TwiceTheGradient, True, "the dense gradient.*is 2 times.*error=1"),
        (AscentGradient, False, "is not a descent direction"),
        (gradients.PhantomGradient, True, "differs from the dense gradient"),
    ],
)
def test_broken_gradient_is_named(make, exact, match):
    _fails(match, testing.check_gradient, make, exact)


@register
class QuotientRegularizer(regularizers.EquilibriumRegularizer):
    """Divides by the residual, which is zero for a failed sample."""

    def penalty(self, linearization, seed):
        residual = linearization.value - linearization.point
        product = linearization.vjp(residual)
        quotient = ops.sum(product**2, axis=1) / ops.sum(residual**2, axis=1)
        is_double = residual.dtype == "float64"
        return ops.mean(ops.cast(quotient, "float64" if is_double else "float32"))


@register
class HalfPrecisionRegularizer(QuotientRegularizer):
    def penalty(self, linearization, seed):
        return ops.mean((linearization.value - linearization.point) ** 2)


@register
class NegativeRegularizer(QuotientRegularizer):
    def penalty(self, linearization, seed):
        return -super().penalty(linearization, seed)


@register
class DrawingRegularizer(regularizers.ResidualRegularizer):
    """Ignores its seed."""

    def penalty(self, linearization, seed):
        penalty = super().penalty(linearization, seed)
        return penalty * tf.random.uniform((), dtype=penalty.dtype)


@register
class ForgetfulRegularizer(regularizers.ResidualRegularizer):
    def __init__(self, scale=1.0):
        super().__init__()

    def get_config(self):
        return {}


@pytest.mark.parametrize(
    "make, match",
    [
        (DrawingRegularizer, "changes although its seed does not"),
        (ForgetfulRegularizer, r"misses \['scale'\]"),
        (QuotientRegularizer, "`QuotientReg.*beside a failed sample is not finite"),
        (HalfPrecisionRegularizer, "is not a scalar in float32"),
        (NegativeRegularizer, "is negative or not finite"),
        (
            functools.partial(regularizers.ResidualRegularizer, weight=0.0),
            "does not penalize an f that expands",
        ),
    ],
)
def test_broken_regularizer_is_named(make, match):
    _fails(match, testing.check_regularizer, make)
