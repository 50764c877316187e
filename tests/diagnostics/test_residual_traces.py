"""The absolute and the relative residual of every evaluation."""

import numpy as np
import pytest

from deq_keras import layers, solvers
from deq_keras.diagnostics import residual_traces


class AffineCell(layers.EquilibriumCell):
    """f(z, u) = a z + u with a slope for each position, of states (2, 3)."""

    def initial_state(self, injection):
        return 0.0 * injection

    def call(self, state, injection):
        return np.array([[0.5], [0.25]]) * state + injection


INPUTS = np.random.RandomState(0).normal(size=(4, 2, 3)) * [[[100.0]]]


def by_hand(num_evaluations, norm):
    """Returns both residuals of plain iterations from zero."""
    state, rows = np.zeros_like(INPUTS), []
    for _ in range(num_evaluations):
        value = np.array([[0.5], [0.25]]) * state + INPUTS
        rows.append((norm(value - state), norm(value)))
        state = value
    residuals, sizes = np.moveaxis(rows, 1, 0)
    return residuals, residuals / sizes


@pytest.mark.parametrize("stop_mode", ["rel", "abs", "rel_max", "abs_max"])
def test_traces_are_those_of_the_solve(stop_mode):
    tol = 3e-2 if stop_mode.startswith("rel") else 3.0
    solver = solvers.FixedPointIteration(12, tol, stop_mode=stop_mode)
    layer = layers.DEQ(AffineCell(dtype="float64"), solver, "phantom")
    traces = residual_traces(layer, INPUTS)
    num_evaluations = layer.solve(INPUTS).num_evaluations.numpy()
    assert num_evaluations.min() < 12

    def norm(states):
        positions = np.linalg.norm(states, axis=-1)
        whole = np.linalg.norm(positions, axis=-1)
        return positions.max(axis=-1) if stop_mode.endswith("max") else whole

    done = np.arange(12)[:, None] >= num_evaluations
    for trace, expected in zip(traces, by_hand(12, norm), strict=True):
        np.testing.assert_array_equal(np.isnan(trace), done)
        np.testing.assert_allclose(trace[~done], expected[~done], rtol=1e-10)


def test_request_sets_the_budget_and_the_initial_state():
    layer = layers.DEQ(AffineCell(dtype="float64"), solvers.Broyden(9), "phantom")
    request = solvers.SolveRequest(2 * INPUTS, max_iter=3, tol=0.0)
    traces = residual_traces(layer, INPUTS, request)
    expected = layer.solve(INPUTS, request).trace
    np.testing.assert_array_equal(traces.relative, expected)
    assert traces.absolute.shape == (3, 4)
    first = np.linalg.norm((0.5 * 2 * INPUTS + INPUTS - 2 * INPUTS)[:, 0], axis=-1)
    assert np.all(traces.absolute[0] >= first)
