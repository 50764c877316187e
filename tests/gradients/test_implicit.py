"""Implicit gradients against the dense solution with (I - J)^-1."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, solvers
from deq_keras.solvers import SolveRequest
from deq_keras.testing.problems import dense_jacobians, relative_error
from tests.gradients.cases import BATCH, FEATURES, START, Case, problem_of
from tests.regimes import ALL_BUT_EAGER_ARE_SLOW


@pytest.fixture(scope="module")
def expected():
    return [source.numpy() for source in Case("float64").oracle()]


def _solver(cls, tol):
    return cls(max_iter=25 if cls is solvers.Broyden else 120, tol=tol)


def _assert_close(actual, expected, tolerance):
    names = ("kernel", "bias", "projection", "inputs")
    for name, got, want in zip(names, actual, expected, strict=True):
        assert relative_error(got, want) < tolerance, name


@pytest.mark.parametrize(
    "forward, adjoint",
    [
        (solvers.FixedPointIteration, solvers.Anderson),
        (solvers.Anderson, solvers.Broyden),
        (solvers.Broyden, solvers.GMRES),
        (solvers.Broyden, solvers.BiCGStab),
    ],
    ids=lambda cls: cls.__name__,
)
def test_float64_equals_the_dense_solution(forward, adjoint, expected):
    case = Case("float64")
    gradient = gradients.ImplicitGradient(_solver(adjoint, 1e-13))
    actual = case.gradients(gradient, _solver(forward, 1e-13), case.sources)
    _assert_close(actual, expected, 1e-9)


def test_the_adjoint_has_a_budget_of_its_own(expected):
    """`max_iter_jitter` shortens the forward solve alone."""
    case, solver = Case("float64"), solvers.Anderson(120, 1e-13)
    start = solver.solve(problem_of(case), START).value
    with tf.GradientTape() as tape:
        tape.watch(case.sources)
        request = SolveRequest(start, max_iter=2)
        problem = problem_of(case)
        value = gradients.ImplicitGradient().solve(problem, request, solver).value
        loss = tf.reduce_sum(value * case.cotangent)
    _assert_close(tape.gradient(loss, case.sources), expected, 1e-9)


@pytest.mark.usefixtures("full_float32")
def test_float32_equals_the_dense_solution(expected):
    case = Case("float32")
    gradient = gradients.ImplicitGradient()
    compute = tf.function(case.gradients, autograph=False)
    actual = compute(gradient, solvers.Anderson(120, 1e-6), case.sources)
    _assert_close(actual, expected, 1e-4)


@pytest.mark.parametrize(
    "cls", (solvers.Anderson, solvers.GMRES), ids=lambda cls: cls.__name__
)
def test_tiny_cotangents(cls, expected):
    """The cotangent of a mean loss over many entries is small; an absolute ridge or
    tolerance would not see it."""
    case = Case("float64")
    case.cotangent *= 1e-9
    actual = case.gradients(
        gradients.ImplicitGradient(_solver(cls, 1e-10)),
        solvers.Broyden(80, 1e-13),
        case.sources,
    )
    _assert_close([1e9 * source for source in actual], expected, 1e-7)


@pytest.mark.parametrize("adjoint", [None, "gmres"])
def test_nested_states_and_injections(adjoint):
    """Two leaves and a dict injection give what the concatenated problem gives."""
    if adjoint is not None:
        adjoint = {"class_name": adjoint, "max_iter": 40, "tol": 1e-12}
    case = Case("float64")
    kernel, bias, projection, inputs = case.sources

    def nested(state, injection):
        flat = tf.concat([state["a"], state["b"][:, :, 0]], axis=1)
        new = tf.tanh(tf.matmul(flat, kernel) + injection["u"] + injection["bias"])
        return {"a": new[:, :2], "b": new[:, 2:, None]}

    start = {
        "a": tf.zeros((BATCH, 2), tf.float64),
        "b": tf.zeros((BATCH, 4, 1), tf.float64),
    }
    with tf.GradientTape() as tape:
        tape.watch(case.sources)
        equilibrium = gradients.ImplicitGradient(adjoint).solve(
            solvers.FixedPointProblem(
                nested, {"u": tf.matmul(inputs, projection), "bias": bias}
            ),
            SolveRequest(start),
            solvers.Broyden(80, 1e-13),
        )
        value = equilibrium.value
        flat = tf.concat([value["a"], value["b"][:, :, 0]], axis=1)
        loss = tf.reduce_sum(flat * case.cotangent)
    actual = tape.gradient(loss, case.sources)
    _assert_close(actual, [s.numpy() for s in case.oracle()], 1e-9)


def test_initial_state_has_no_gradient():
    case = Case("float64")
    start = tf.ones((BATCH, FEATURES), tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(start)
        equilibrium = gradients.ImplicitGradient().solve(
            problem_of(case),
            SolveRequest(start),
            solvers.FixedPointIteration(3, tol=None),
        )
    gradient = tape.gradient(equilibrium.value, start)
    assert gradient is None or not np.any(gradient)


@pytest.mark.parametrize(
    "cls", (solvers.Broyden, solvers.GMRES), ids=lambda cls: cls.__name__
)
def test_adjoint_is_recorded(cls):
    case = Case("float64")
    records = []
    adjoint = cls(max_iter=40, tol=1e-8)
    gradient = gradients.ImplicitGradient(adjoint)
    case.gradients(gradient, solvers.Broyden(40, 1e-10), case.sources, records.append)
    record = records[0].solution
    np.testing.assert_array_equal(record.status, solvers.CONVERGED)
    assert np.max(record.residual) <= 1e-8
    assert 2 < record.batch_evaluations < 40

    records.clear()
    short = gradients.ImplicitGradient(solvers.FixedPointIteration(2))
    case.gradients(short, solvers.Broyden(40, 1e-10), case.sources, records.append)
    record = records[0].solution
    np.testing.assert_array_equal(record.status, solvers.MAX_ITER)
    assert np.min(record.residual) > 1e-3


def test_neumann_gradient_is_the_series_of_the_dense_jacobian():
    num_terms = 3
    case = Case("float64")
    solver = solvers.Broyden(80, 1e-13)
    neumann = gradients.NeumannGradient(num_terms)
    actual = case.gradients(neumann, solver, case.sources)

    injection = tf.matmul(case.inputs, case.projection)

    def function(z):
        return case.apply(z, injection, case.kernel, case.bias)

    solution = solver.solve(function, START)
    jacobians = dense_jacobians(function, solution.point)
    series = term = case.cotangent.numpy()
    for _ in range(num_terms):
        term = np.einsum("bi,bij->bj", term, jacobians)
        series = series + term
    with tf.GradientTape() as tape:
        tape.watch(case.bias)
        value = case.apply(solution.point, injection, case.kernel, case.bias)
    expected = tape.gradient(value, case.bias, output_gradients=tf.constant(series))
    assert relative_error(actual[1], expected) < 1e-9


@ALL_BUT_EAGER_ARE_SLOW
def test_growing_neumann_series_ends_early(regime):
    slopes = tf.constant([[0.5], [3.0], [-60.0], [1.2], [1e4], [1e300]], tf.float64)

    @regime
    def gradient_of_sources(sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            equilibrium = gradients.NeumannGradient(12).solve(
                solvers.FixedPointProblem(lambda z, u: slopes * z + u, sources),
                SolveRequest(tf.zeros((6, 1), tf.float64)),
                solvers.FixedPointIteration(1),
            )
        return tape.gradient(equilibrium.value, sources)

    gradient = gradient_of_sources(tf.ones((6, 1), tf.float64))[:, 0]
    whole = [sum(slope**k for k in range(13)) for slope in (0.5, 1.2)]
    expected = [whole[0], 1 + 3 + 9, 1, whole[1], 1, 1]
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
