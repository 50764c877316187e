"""Anderson and Broyden reproduce the reference's iterates when configured as it is.

The reference stops and measures for the whole batch at once. Here every solve runs its
whole budget (`tol=None`), and the batch's norms are formed from the samples'.
"""

import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras import solvers
from tests.golden.arrays import golden_problem, load

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
