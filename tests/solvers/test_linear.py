"""GMRES and BiCGStab against dense linear algebra."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.solvers import LoopOptions, SolveRequest
from deq_keras.testing.problems import non_normal_matrix
from tests.regimes import slow

SOLVERS = (solvers.GMRES, solvers.BiCGStab)
FEATURES = 6


class Affine(solvers.FixedPointFunction):
    """f(z) = L z + c, with a matrix for each sample."""

    def __init__(self, matrices):
        self.matrices = matrices

    def __call__(self, state, constant):
        # A sum over an explicit axis rounds alike for any number of rows.
        return tf.reduce_sum(self.matrices * state[:, None], axis=2) + constant

    def constant_term(self, constant):
        return constant


@pytest.fixture(params=SOLVERS, ids=lambda cls: cls.__name__)
def solver_class(request):
    """Each of the linear solvers in turn."""
    return request.param


def _solve(solver, matrices, constant, dtype="float64", regime=lambda f: f):
    @regime
    def solve(matrices, constant):
        problem = solvers.FixedPointProblem(Affine(matrices), constant)
        return solver.solve(problem, SolveRequest())

    return solve(tf.constant(matrices, dtype), tf.constant(constant, dtype))


def _exact(matrices, constant):
    systems = np.eye(matrices.shape[-1]) - matrices
    return np.linalg.solve(systems, constant[..., None])[..., 0]


def _matrices():
    """Non-normal, with spectral radii of 0.5 and of 3, where iteration diverges."""
    converging = non_normal_matrix(size=FEATURES)
    random = np.random.RandomState(0).normal(size=(FEATURES, FEATURES))
    diverging = random * 3.0 / np.abs(np.linalg.eigvals(random)).max()
    return np.stack([converging, diverging, 0.1 * random])


def _constants(batch=3, size=FEATURES):
    return np.random.RandomState(1).normal(size=(batch, size))


@pytest.mark.parametrize(
    "solver_class, regime",
    [(solvers.GMRES, "eager"), slow(solvers.GMRES, "xla"), (solvers.BiCGStab, "xla")],
    indirect=True,
)
def test_equals_the_dense_solution(solver_class, regime):
    matrices, constant = _matrices(), _constants()
    solution = _solve(solver_class(60, 1e-12), matrices, constant, regime=regime)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    expected = _exact(matrices, constant)
    np.testing.assert_allclose(solution.value, expected, rtol=0, atol=1e-10)
    diverging = np.abs(np.linalg.eigvals(matrices)).max(axis=1) > 1
    assert diverging.tolist() == [False, True, False]


@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_float32_reaches_its_precision_at_any_scale(solver_class, scale):
    matrices, constant = _matrices(), _constants()
    solution = _solve(solver_class(60, 1e-4), matrices, scale * constant, "float32")
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    expected = scale * _exact(matrices, constant)
    error = np.abs(solution.value - expected).max()
    assert error < 1e-3 * np.abs(expected).max()


def test_gmres_needs_a_product_for_each_eigenvalue():
    """And one evaluation that confirms the solution."""
    random = np.random.RandomState(2)
    basis = np.eye(8) + 0.1 * random.normal(size=(3, 8, 8))  # Well conditioned.
    eigenvalues = np.array([[0.9] * 8, [0.5, -2.0] * 4, [0.5, 0.9, 3.0, -0.4] * 2])
    matrices = basis @ (eigenvalues[:, :, None] * np.linalg.inv(basis))
    solution = _solve(solvers.GMRES(20, 1e-9), matrices, _constants(3, 8))
    np.testing.assert_array_equal(solution.num_evaluations, [2, 3, 5])


def test_gmres_does_not_break_down_at_a_stall():
    """I - L is a rotation by 90 degrees: the first product is orthogonal to c."""
    matrices = np.eye(2)[None] - np.array([[[0.0, 1.0], [-1.0, 0.0]]])
    solution = _solve(solvers.GMRES(10, 1e-12), matrices, np.array([[1.0, 0.0]]))
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(solution.value, [[0.0, 1.0]], atol=1e-12)


@pytest.mark.parametrize(
    "solver_class, exact_regime",
    [(solvers.GMRES, "graph"), (solvers.BiCGStab, "eager")],
    indirect=True,
)
def test_a_tensor_budget_equals_an_int(solver_class, exact_regime):
    matrices, constant = _matrices()[:1], _constants(1)

    @exact_regime
    def solve(max_iter):
        problem = solvers.FixedPointProblem(
            Affine(tf.constant(matrices)), tf.constant(constant)
        )
        request = SolveRequest(
            max_iter=max_iter, tol=1e-9, loop=LoopOptions(records_trace=False)
        )
        return solver_class(40).solve(problem, request)

    whole, cut = solve(tf.constant(40)), solve(tf.constant(3))
    expected = _solve(solver_class(40, 1e-9), matrices, constant)
    np.testing.assert_allclose(whole.value, expected.value, rtol=1e-12)
    assert whole.num_evaluations[0] == expected.num_evaluations[0]
    assert cut.num_evaluations[0] == 3
    assert cut.status[0] == solvers.MAX_ITER


@pytest.mark.parametrize(
    "solver_class, exact_regime",
    [(solvers.GMRES, "eager"), (solvers.BiCGStab, "eager")],
    indirect=True,
)
def test_samples_are_independent(solver_class, exact_regime):
    two_eigenvalues = np.diag([0.5, -0.5] * 3)[None]
    matrices = np.concatenate([_matrices()[:2], two_eigenvalues, two_eigenvalues])
    constant = _constants(4)
    constant[3] = 0.0
    solver = solver_class(40, 1e-6)
    batched = _solve(solver, matrices, constant, "float32", exact_regime)
    counts = batched.num_evaluations.numpy()
    assert len(set(counts)) >= 3
    assert counts[3] == 1
    np.testing.assert_array_equal(batched.value[3], 0.0)
    for i in range(4):
        row = slice(i, i + 1)
        alone = _solve(solver, matrices[row], constant[row], "float32", exact_regime)
        for field in ("value", "point", "residual", "status", "num_evaluations"):
            np.testing.assert_array_equal(
                getattr(batched, field)[i], getattr(alone, field)[0], err_msg=field
            )


def test_singular_system_keeps_its_smallest_residual(solver_class):
    """L has the eigenvalue 1 in the first entry, so z_0 = z_0 + 1 cannot be solved."""
    matrices = np.stack([np.diag([1.0, 0.5, -0.5]), np.diag([0.9, 0.5, -0.5])])
    solution = _solve(solver_class(12, 1e-8), matrices, np.ones((2, 3)))
    np.testing.assert_array_equal(
        solution.status, [solvers.MAX_ITER, solvers.CONVERGED]
    )
    assert np.all(np.isfinite(solution.value))
    assert 1e-8 < solution.residual[0] < 1
    np.testing.assert_allclose(solution.value[1], [10, 2, 2 / 3], rtol=1e-7)


def test_a_consistent_singular_system_is_solved(solver_class):
    matrices = np.diag([1.0, 0.5, -0.5])[None]
    solution = _solve(solver_class(12, 1e-10), matrices, np.array([[0.0, 1.0, 1.0]]))
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(solution.value, [[0, 2, 2 / 3]], atol=1e-9)


@pytest.mark.parametrize(
    "solver_class, exact_regime, poison",
    [(solvers.GMRES, "eager", np.nan), (solvers.BiCGStab, "graph", np.inf)],
    indirect=["solver_class", "exact_regime"],
)
def test_non_finite_sample_affects_no_other(solver_class, exact_regime, poison):
    matrices, constant = _matrices(), _constants()
    solver = solver_class(40, 1e-6)
    clean = _solve(solver, matrices, constant, "float32", exact_regime)
    poisoned = constant.copy()
    poisoned[1, 0] = poison
    mixed = _solve(solver, matrices, poisoned, "float32", exact_regime)
    assert mixed.status[1] == solvers.DIVERGED
    assert mixed.num_evaluations[1] == 1
    for i in (0, 2):
        for field in ("value", "point", "residual", "status", "num_evaluations"):
            np.testing.assert_array_equal(
                getattr(mixed, field)[i], getattr(clean, field)[i], err_msg=field
            )


def test_a_whole_budget_stays_at_the_solution(solver_class):
    """Directions at the level of rounding errors must not move the result."""
    matrices, constant = _matrices(), _constants()
    solution = _solve(solver_class(60, tol=None), matrices, constant)
    np.testing.assert_array_equal(solution.num_evaluations, 60)
    np.testing.assert_allclose(
        solution.value, _exact(matrices, constant), rtol=0, atol=1e-9
    )


def test_masked_positions_stay_zero(solver_class):
    matrices, constant = _matrices()[:1], _constants(1)
    mask = tf.constant([[True, True, False]])
    problem = solvers.FixedPointProblem(
        _Reshaped(tf.constant(matrices)), tf.constant(constant.reshape(1, 3, 2)), mask
    )
    solution = solver_class(40, 1e-11).solve(problem, SolveRequest())
    expected = _exact(matrices[:, :4, :4], constant[:, :4])
    np.testing.assert_array_equal(solution.value[:, 2], 0.0)
    np.testing.assert_allclose(
        np.reshape(solution.value[:, :2], (1, 4)), expected, atol=1e-9
    )


class _Reshaped(Affine):
    """The same function of a state `(batch, 3, 2)`."""

    def __call__(self, state, constant):
        flat = [tf.reshape(leaf, (-1, FEATURES)) for leaf in (state, constant)]
        return tf.reshape(super().__call__(*flat), tf.shape(state))  # (B, 3, 2)


def test_nonlinear_problem_raises(solver_class):
    with pytest.raises(ValueError, match="Received: problem="):
        solver_class().solve(tf.cos, SolveRequest(tf.zeros((1, 2))))
