"""Aitken's method against closed forms."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing import check_solver


@pytest.mark.slow
def test_contract():
    check_solver(solvers.Aitken)


def test_scalar_needs_three_evaluations():
    """z* = b / (1 - a), also where plain iteration oscillates or diverges."""
    slopes = tf.constant([[0.75], [-0.9], [-3.0], [3.0]], tf.float64)
    request = solvers.SolveRequest(tf.zeros((4, 1), tf.float64), tol=1e-12)
    solution = solvers.Aitken().solve(lambda z: slopes * z + 1.0, request)
    np.testing.assert_allclose(solution.value, 1 / (1 - slopes), rtol=1e-12)
    np.testing.assert_array_equal(solution.num_evaluations, 3)


def test_factor_beyond_its_limit_is_a_plain_step():
    # The secant of a = 0.95 is 20.
    solver = solvers.Aitken(max_iter=3, tol=None)
    request = solvers.SolveRequest(tf.zeros((1, 1), tf.float64))
    plain = solver.solve(lambda z: 0.95 * z + 1.0, request)
    np.testing.assert_allclose(plain.point, [[1.95]])
    exact = solvers.Aitken(max_iter=3, tol=None, limit=30.0)
    found = exact.solve(lambda z: 0.95 * z + 1.0, request)
    np.testing.assert_allclose(found.point, [[20.0]], rtol=1e-9)
    # The secant of a = -20 is 1 / 21, below the limit of 1 / 10.
    plain = solver.solve(lambda z: 1.0 - 20.0 * z, request)
    np.testing.assert_allclose(plain.point, [[-19.0]])
    found = exact.solve(lambda z: 1.0 - 20.0 * z, request)
    np.testing.assert_allclose(found.point, [[1 / 21]], rtol=1e-9)
