"""Solvers evaluate f where the methods of the textbooks do, written in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers

DIM = 6
RANDOM = np.random.default_rng(3)
MAX_ITER = 1  # The status of a solve that did not converge.
MATRIX = RANDOM.normal(size=(DIM, DIM))
START = RANDOM.normal(size=DIM)


def _smooth(z):
    return np.tanh(z @ (0.4 * MATRIX)) + START


def _expansive(z):
    """Its derivative is far from a contraction, and of both signs."""
    return (
        z - (z - START) * np.array([3.0, -2.0, 0.3, 4.0, -0.5, 1.5]) + 0.1 * np.sin(z)
    )


def _slow(z):
    """A contraction of rates .95 to .995."""
    return z + (START - z) * np.linspace(0.005, 0.05, DIM)


def _kinked(z):
    """Expands with kinks: the residual stalls after a few evaluations."""
    return np.maximum(0.7 * MATRIX @ z, 0.0) - START


class Recorded(solvers.FixedPointFunction):
    """Calls a NumPy function of a vector, and keeps the points."""

    def __init__(self, function):
        self.function = function
        self.points = []

    def __call__(self, state, constant):
        self.points.append(state[0].numpy())
        return tf.constant(self.function(self.points[-1])[None])

    def constant_term(self, constant):
        return constant


def _points(solver, function, num_points, capacity=None):
    """Returns the points at which a solver evaluates a function, in float64.

    With a capacity, the budget is a tensor, and the memory holds fewer evaluations, as
    under XLA.
    """
    recorded = Recorded(function)
    problem = solvers.FixedPointProblem(recorded, tf.constant(START[None]))
    start = tf.zeros((1, DIM), "float64")
    if isinstance(solver, solvers.LinearSolver):
        start = None
    max_iter = num_points if capacity is None else tf.constant(num_points)
    loop = solvers.LoopOptions(capacity=capacity)
    solver.solve(problem, solvers.SolveRequest(start, max_iter, 0.0, loop=loop))
    return np.array(recorded.points)


def _anderson(function, num_points, history, ridge, mixing):
    """Mixes the last values by a constrained least-squares problem.

    With more than four columns, a sample without a new smallest residual for
    `history` evaluations takes plain steps.
    """
    columns = min(history, DIM + 1, num_points - 1)
    points, values, residuals = [np.zeros(DIM)], [], []
    while len(points) < num_points:
        values.append(function(points[-1]))
        residuals.append(values[-1] - points[-1])
        newest = np.array(residuals[-columns:])  # (m, D)
        gram = newest @ newest.T
        weights = np.linalg.solve(
            gram + ridge * np.diag(np.diag(gram)), np.ones(len(gram))
        )
        weights /= weights.sum()
        norms = np.linalg.norm(residuals, axis=1)
        if columns > 4 and len(norms) - 1 - norms.argmin() >= columns:
            weights = np.eye(len(weights))[-1]
        kept = 1.0 - mixing if len(values) > 1 else 0.0
        points.append(weights @ (np.array(values[-columns:]) - kept * newest))
    return np.array(points)


@pytest.mark.parametrize("function", [_smooth, _expansive, _kinked])
@pytest.mark.parametrize("history", [1, 3, 5, 6])
def test_anderson(function, history):
    solver = solvers.Anderson(history=history, ridge=1e-3, mixing=0.8)
    expected = _anderson(function, 16, history, 1e-3, 0.8)
    points = _points(solver, function, 16)
    np.testing.assert_allclose(points, expected, rtol=1e-6, atol=1e-8)


def _broyden(function, num_points, history):
    """Broyden's good method with a dense inverse Jacobian, which restarts."""
    points, inverse = [np.zeros(DIM)], -np.eye(DIM)
    residual = function(points[0]) - points[0]
    while len(points) < num_points:
        step = -inverse @ residual
        points.append(points[-1] + step)
        following = function(points[-1]) - points[-1]
        if len(points) > 1 and (len(points) - 1) % history == 0:
            inverse = -np.eye(DIM)
        else:
            change = inverse @ (following - residual)
            inverse += np.outer(step - change, step @ inverse) / (step @ change)
        residual = following
    return np.array(points)


@pytest.mark.parametrize("function", [_smooth, _expansive, _slow])
@pytest.mark.parametrize("history", [3, 20])
def test_broyden(function, history):
    expected = _broyden(function, 8, history)
    points = _points(solvers.Broyden(history=history), function, 8)
    np.testing.assert_allclose(points, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("function", [_smooth, _slow])
def test_broyden_restarts_when_its_memory_is_full(function):
    points = _points(solvers.Broyden(4), function, 8, capacity=4)
    expected = _broyden(function, 8, 3)
    np.testing.assert_allclose(points, expected, rtol=1e-5, atol=1e-7)


def test_aitken():
    expected, factor, last = [np.zeros(DIM)], 1.0, None
    while len(expected) < 12:
        residual = _smooth(expected[-1]) - expected[-1]
        if last is not None:
            change = residual - last
            factor *= -(last @ change) / (change @ change)
            if not 0.1 <= abs(factor) <= 10.0:
                factor = 1.0
        last = residual
        expected.append(expected[-1] + factor * residual)
    np.testing.assert_allclose(_points(solvers.Aitken(), _smooth, 12), expected)


LINEAR = 0.5 * MATRIX


def _affine(z):
    return LINEAR @ z + START


@pytest.mark.parametrize("restart", [3, 20])
def test_gmres(restart):
    """Each point is one step from the minimizer over the span of the points before.

    If the squared residual hardly fell, the step is along the newest change instead.
    """
    system = np.eye(DIM) - LINEAR
    points = _points(solvers.GMRES(restart=restart), _affine, 9)
    begin, first, last, num_slow = np.zeros(DIM), 0, np.linalg.norm(START), 0
    for k in range(1, DIM if restart > DIM else 9):
        steps = np.diff([begin, *points[first:k]], axis=0)  # (k, D)
        changes = -system @ steps.T
        rest = START - system @ begin
        coordinates, *_ = np.linalg.lstsq(changes, -rest, rcond=None)
        best = begin + coordinates @ steps
        residual = START - system @ best
        size = np.linalg.norm(residual)
        is_full = k - first == restart
        direction = residual
        if size**2 >= 0.998 * last**2 and not is_full:
            orthonormal, triangle = np.linalg.qr(changes)
            direction = size * orthonormal[:, -1] * np.sign(triangle[-1, -1])
            num_slow += 1
        np.testing.assert_allclose(points[k], best + direction, rtol=1e-6, atol=1e-8)
        last = size
        if is_full:
            begin, first = best, k
    assert num_slow > 0 or restart > DIM


def test_bicgstab_begins_again_with_a_new_shadow():
    """The second residual is orthogonal to the first, so the method breaks down."""
    system = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.5], [0.0, 1.0, 1.0]])
    constant = np.array([1.0, 0.0, 0.0])
    problem = solvers.FixedPointProblem(
        Recorded(lambda z: z - system @ z + constant), tf.constant(constant[None])
    )
    request = solvers.SolveRequest(None, max_iter=9, tol=1e-10)
    solution = solvers.BiCGStab().solve(problem, request)
    expected = np.linalg.solve(system, constant)
    np.testing.assert_allclose(solution.value[0], expected, atol=1e-9)


class Jump(solvers.FixedPointSolver):
    """Multiplies the point by a number."""

    def init(self, point, max_iter):
        return ()

    def step(self, evaluation, memory, num_evaluations):
        return 4.0 * evaluation.point, memory


def test_jump_to_where_rounding_hides_the_residual_does_not_converge():
    request = solvers.SolveRequest(tf.constant([[0.05]]), max_iter=3, tol=1e-8)
    solution = Jump().solve(lambda z: z + 3e-9, request)
    assert solution.status[0] == MAX_ITER
