"""The loop of a solve: the states that it stores, and converted functions."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers


@pytest.mark.parametrize(
    "solver, budget, expected",
    [
        (solvers.FixedPointIteration(), 60, 0),
        (solvers.Broyden(), 12, 11),  # One state for each iteration.
        (solvers.Broyden(history=4), 60, 4),
        (solvers.Anderson(history=5), 60, 10),  # Two for each column of the history.
        (solvers.Anderson(history=5), 2, 2),
    ],
)
def test_number_of_stored_states(solver, budget, expected):
    leaves = tf.nest.flatten(solver.init(tf.zeros((2, 7)), budget))
    leaves = [leaf.stack() if hasattr(leaf, "stack") else leaf for leaf in leaves]
    sizes = [tf.size(leaf) // 14 for leaf in leaves if leaf.shape[-1] == 7]
    assert sum(sizes) == expected


def test_autograph_converts_a_function_of_the_user():
    def f(state):
        if tf.reduce_sum(state) > 100.0:
            state = 0.0 * state
        return 0.5 * state + 1.0

    @tf.function
    def solve(state):
        request = solvers.SolveRequest(state)
        return solvers.FixedPointIteration(30, tol=1e-6).solve(f, request).value

    np.testing.assert_allclose(solve(tf.zeros((2, 3))), 2.0, atol=1e-5)
