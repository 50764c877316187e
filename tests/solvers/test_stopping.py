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
    [((3, 5, 4), "eager"), ((3, 2, 5, 4), "xla"), ((3, 7), "eager"), ((3,), "eager")],
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


@pytest.mark.parametrize("stop_mode", ["rel", "abs", "rel_max", "abs_max"])
@pytest.mark.parametrize("slowest", [0, 1, 2])
def test_a_nest_stops_when_its_slowest_leaf_does(stop_mode, slowest):
    """NumPy repeats the steps: the leaves differ in rate, in size and in shape."""
    rates, shapes = np.full(3, 0.3), [(2, 5), (2, 3, 2), (2, 2, 2, 1)]
    rates[slowest] = 0.9
    random, tol = np.random.RandomState(slowest), 1e-3
    start = [random.normal(size=shape) for shape in shapes]
    goal = [scale * random.normal(size=s) for scale, s in zip((1, 9, 3), shapes)]
    solution = solvers.FixedPointIteration(200, tol, stop_mode).solve(
        lambda state: [g + r * (z - g) for g, r, z in zip(goal, rates, state)],
        solvers.SolveRequest(start),
    )
    for sample in range(2):
        state, count, residual = [leaf[sample] for leaf in start], 0, np.inf
        while residual > tol:
            value = [
                g[sample] + r * (z - g[sample]) for g, r, z in zip(goal, rates, state)
            ]
            change = [v - z for v, z in zip(value, state)]
            norm, size = (_norm_of(leaves, stop_mode) for leaves in (change, value))
            residual = norm / (size if stop_mode.startswith("rel") else 1.0)
            state, count = value, count + 1
        assert solution.num_evaluations[sample] == count
        np.testing.assert_allclose(solution.residual[sample], residual, rtol=1e-9)


def _norm_of(leaves, stop_mode):
    if not stop_mode.endswith("max"):
        return np.sqrt(sum(np.sum(leaf**2) for leaf in leaves))
    positions = [leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves]
    return max(np.linalg.norm(rows, axis=1).max() for rows in positions)


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
