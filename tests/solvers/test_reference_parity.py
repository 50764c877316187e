"""Anderson and Broyden reproduce the reference's iterates when configured as it is.

The reference stops and measures for the whole batch at once. Here every solve runs its
whole budget (`tol=None`), and the batch's norms are formed from the samples'.
"""

import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras import solvers
from tests.golden.arrays import fill, golden_problem, load

PROBLEMS = ("p1_linear", "p2_tanh", "p3_mlp", "p6_multi")
# (run, budget): the reference's threshold is a budget for Anderson, and the number of
# evaluations after the first for Broyden.
RUNS = ("rel/eps1e-06/thr30", "abs/eps0.001/thr30", "rel/eps0.001/thr30")


def _norm(state):
    squares = [np.sum(np.square(leaf)) for leaf in tree.flatten(state)]
    return np.sqrt(np.sum(squares))


def _batch_traces(solver, problem, num_evaluations):
    """|g| and |f(z)| over the batch after 1 ... num_evaluations evaluations."""
    residuals, values = [], []

    def recorded(state):
        value = problem.function(state)
        residuals.append(_norm(tree.map_structure(tf.subtract, value, state)))
        values.append(_norm(value))
        return value

    request = solvers.SolveRequest(problem.initial_state, max_iter=num_evaluations)
    solver.solve(recorded, request)
    assert len(residuals) == num_evaluations
    return np.array(residuals), np.array(values)


def _assert_follows(trace, expected, sensitivity):
    num_real = _length_without_padding(expected)
    assert num_real >= 3
    np.testing.assert_allclose(
        trace[:num_real],
        expected[:num_real],
        rtol=max(100 * sensitivity, 1e-9),
        atol=1e-14,
    )


def _length_without_padding(trace):
    """The reference pads its traces with the lowest value after it stops."""
    return int(np.argmax(trace == trace[-1])) + 1


@pytest.mark.parametrize("name", PROBLEMS)
def test_anderson_follows_the_reference(name):
    solver = solvers.Anderson(
        max_iter=30, tol=None, history=6, ridge=1e-4, ridge_mode="absolute"
    )
    residuals, values = _batch_traces(solver, golden_problem(name), 30)
    for run in RUNS:
        arrays = _run(name, "anderson", run)
        _assert_follows(residuals[2:], arrays["abs_trace"], arrays["sens_trace"])
        relative = residuals / (values + 1e-5)
        _assert_follows(relative[2:], arrays["rel_trace"], arrays["sens_trace"])


@pytest.mark.parametrize("name", PROBLEMS)
def test_broyden_follows_the_reference(name):
    solver = solvers.Broyden(max_iter=31, tol=None)
    residuals, values = _batch_traces(solver, golden_problem(name), 31)
    for run in RUNS:
        arrays = _run(name, "broyden", run)
        _assert_follows(residuals[1:], arrays["abs_trace"], arrays["sens_trace"])
        relative = residuals / (values + 1e-9)
        _assert_follows(relative[1:], arrays["rel_trace"], arrays["sens_trace"])


@pytest.mark.parametrize(
    "variant, arguments",
    [("m2", {"history": 2}), ("m10", {"history": 10}), ("lam0", {"ridge": 0.0})],
)
def test_anderson_variants_follow_the_reference(variant, arguments):
    arguments = {"history": 6, "ridge": 1e-4, **arguments}
    solver = solvers.Anderson(tol=None, ridge_mode="absolute", **arguments)
    # Without a ridge the systems become singular to rounding as residuals fall, and
    # both implementations then follow their own noise.
    trace = load("solvers")[f"p3_mlp/anderson_{variant}/rel/eps1e-06/thr30/abs_trace"]
    expected = trace[: _length_without_padding(trace)]
    compared = min(len(expected), 10 if variant == "lam0" else 28)
    residuals, _ = _batch_traces(solver, golden_problem("p3_mlp"), compared + 2)
    rtol = 1e-6 if variant == "lam0" else 1e-9
    np.testing.assert_allclose(residuals[2:], expected[:compared], rtol=rtol)


def _run(name, solver, run):
    prefix = f"{name}/{solver}/{run}/"
    fields = ("abs_trace", "rel_trace", "sens_trace")
    return {field: load("solvers")[prefix + field] for field in fields}


def _tabled_function(scale=1.0):
    kernel = tf.constant(fill((6, 6), 1, 0.5).T * scale)
    bias = tf.constant(fill((2, 6), 2, 0.8))
    return lambda z: tf.tanh(tf.matmul(z, kernel) + bias)


TABLE = [
    pytest.param(
        solvers.Anderson(history=3, ridge=1e-3, ridge_mode="absolute", mixing=0.8),
        1.0,
        [0.66466777670, 0.30433016462, 0.15107702930, 0.071853933242, 0.020615364954]
        + [0.011579526090],
        id="anderson-mixing",
    ),
    pytest.param(
        solvers.Broyden(),
        6.0,
        [3.3724821416, 2.2329955049, 1.6341157094, 0.75792086197, 1.0370237955]
        + [0.27058185013, 0.035217297587, 0.017824117100],
        id="broyden-expansive",
    ),
]


@pytest.mark.parametrize("solver, scale, expected", TABLE)
def test_traces_of_the_reference_sheet(solver, scale, expected):
    first = 1 if isinstance(solver, solvers.Broyden) else 2
    solution = type(solver)(
        **{
            **solver.get_config(),
            "max_iter": len(expected) + first,
            "tol": None,
            "stop_mode": "abs",
        }
    ).solve(_tabled_function(scale), solvers.SolveRequest(tf.zeros((2, 6), tf.float64)))
    batch_norms = np.linalg.norm(solution.trace, axis=1)
    np.testing.assert_allclose(batch_norms[first:], expected, rtol=1e-9)


def test_samples_stop_alone():
    """The reference solves both samples to k = 8; alone it would stop sample 1 at 6."""
    solver = solvers.Anderson(10, 1e-3, history=6, ridge=1e-4, ridge_mode="absolute")
    solution = solver.solve(
        _tabled_function(), solvers.SolveRequest(tf.zeros((2, 6), tf.float64))
    )
    np.testing.assert_array_equal(solution.num_evaluations, [9, 7])
    np.testing.assert_allclose(
        solution.trace[2:7, 1], [0.28524, 0.15156, 0.06239, 0.0087749, 3.7522e-4], 2e-4
    )
