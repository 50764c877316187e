"""Norms of residuals."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell


def _residual(stop_mode, state, value):
    solver = solvers.FixedPointIteration(1, None, stop_mode)
    return solver.solve(lambda z: value, solvers.SolveRequest(state)).residual


@pytest.mark.parametrize(
    "shape, regime",
    [
        ((3, 5, 4), "eager"),
        ((3, 2, 5, 4), "xla"),
        ((3, 7), "eager"),
        ((3,), "eager"),
    ],
    ids=str,
    indirect=["regime"],
)
def test_norms_equal_numpy(shape, regime):
    random = np.random.RandomState(0)
    state, value = random.normal(size=(2, *shape))
    axis = tuple(range(1, len(shape)))

    def norms(array):
        by_position = array if len(shape) > 1 else array[:, None]
        by_position = np.sqrt(np.sum(by_position**2, axis=-1))
        over_positions = tuple(range(1, by_position.ndim))
        return np.sqrt(np.sum(array**2, axis=axis)), np.max(by_position, over_positions)

    all_of_it, largest = norms(value - state)
    all_scale, largest_scale = norms(value)
    for stop_mode, expected in {
        "abs": all_of_it,
        "rel": all_of_it / all_scale,
        "abs_max": largest,
        "rel_max": largest / largest_scale,
    }.items():
        actual = regime(lambda mode=stop_mode: _residual(mode, state, value))()
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_largest_position_of_a_nest():
    state = {"map": tf.zeros((1, 4, 2)), "vector": tf.zeros((1, 3))}
    value = {
        "map": tf.constant([[[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [1.0, 1.0]]]),
        "vector": tf.constant([[2.0, 2.0, 2.0]]),
    }
    np.testing.assert_allclose(_residual("abs_max", state, value), [5.0])


def test_a_mode_with_unknown_length():
    solver = solvers.Broyden(max_iter=20, tol=1e-5, stop_mode="rel_max")

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3])], autograph=False)
    def solve(u):
        return solver.solve(
            lambda z: 0.5 * tf.tanh(z) + u, solvers.SolveRequest(tf.zeros_like(u))
        )

    for length in (0, 4):
        solution = solve(tf.ones((2, length, 3)))
        np.testing.assert_array_equal(solution.status, [solvers.CONVERGED] * 2)
    assert np.all(solution.residual < 1e-5)


@pytest.mark.parametrize("regime", ["xla"], indirect=True)
def test_non_finite_positions_are_seen(regime):
    value = np.ones((3, 4, 2), "float32")
    value[1, 0, 0] = np.nan
    value[2, 3, 1] = np.inf
    solver = solvers.FixedPointIteration(2, 1e-3, "rel_max")
    solution = regime(
        lambda: solver.solve(lambda z: value, solvers.SolveRequest(np.ones_like(value)))
    )()
    np.testing.assert_array_equal(
        solution.status, [solvers.CONVERGED, solvers.DIVERGED, solvers.DIVERGED]
    )


def test_padding_does_not_change_the_largest_position():
    inputs = np.random.RandomState(0).normal(size=(1, 4, 3)).astype("float32")
    padded = np.pad(inputs, ((0, 0), (0, 6), (0, 0)))
    mask = np.arange(10)[None] < 4
    solver = solvers.FixedPointIteration(30, 1e-5, "rel_max")
    deq = layers.DEQ(TanhCell(3), solver)
    alone, wide = deq.solve(inputs), deq.solve(padded, mask=mask)
    np.testing.assert_array_equal(alone.num_evaluations, wide.num_evaluations)
    np.testing.assert_allclose(alone.residual, wide.residual, rtol=1e-5)
