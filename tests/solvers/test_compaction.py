"""Samples that are done leave the batch, and results stay equal."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers

# The features fill whole registers: other instructions compute the last entries of a
# tensor, and differ in the last bit.
BATCH, FEATURES = 9, 8
RANDOM = np.random.RandomState(0)
# Some samples contract at once, others hardly.
RATES = np.array([0.1, 0.9, 0.2, 0.95, 0.1, 0.5, 0.1, 0.99, 0.0])
KERNEL = np.linalg.qr(RANDOM.normal(size=(FEATURES, FEATURES)))[0]
HAS_ROWS = {"rate": True, "kernel": False, "u": True}
SOLVERS = [
    solvers.FixedPointIteration(max_iter=14),
    solvers.FixedPointIteration(max_iter=14, damping=0.7, patience=2),
    solvers.FixedPointIteration(max_iter=6, tol=None),
    solvers.Anderson(max_iter=14, stop_mode="abs_max", mixing=0.8),
    solvers.Broyden(max_iter=14, history=3),
]


class Problem:
    """z = tanh(rate W z + u): `rate` and `u` have a row for each sample, W has not."""

    def __init__(self, batch=BATCH, dtype=tf.float64):
        random = np.random.RandomState(1)
        self.injection = {
            "rate": tf.constant(np.resize(RATES, batch)[:, None], dtype),
            "kernel": tf.constant(KERNEL, dtype),
            "u": tf.constant(random.normal(size=(batch, FEATURES)), dtype),
        }
        self.state = tf.zeros((batch, FEATURES), dtype)
        self.num_rows = tf.Variable(0)

    def function(self, state, injection):
        self.num_rows.assign_add(tf.shape(state)[0])
        # Matrix products differ in the last bit between batches of different sizes.
        product = tf.reduce_sum(state[:, :, None] * injection["kernel"], axis=1)
        return tf.tanh(injection["rate"] * product + injection["u"])

    def solutions(self, solver, wrap=lambda function: function, **arguments):
        """Returns the solution of the masked loop and of the compact one, and how many
        rows the latter evaluated."""
        found = []
        for compact in (False, True):
            solve = functools.partial(self.solve, solver, compact, **arguments)
            self.num_rows.assign(0)
            found.append(wrap(lambda injection, f=solve: f(injection))(self.injection))
        return *found, int(self.num_rows)

    def solve(self, solver, compact, injection, **arguments):
        """Returns the solution of one of the loops."""
        solver = type(solver)(**{**solver.get_config(), "compact": compact})
        problem = solvers.FixedPointProblem(self.function, injection, has_rows=HAS_ROWS)
        return solver.solve(problem, solvers.SolveRequest(self.state, **arguments))


def _assert_equal(one, two):
    for name in one._fields:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)


@pytest.mark.parametrize(
    "solver, exact_regime",
    [*zip(SOLVERS, ["graph", *4 * ["eager"]], strict=True)],
    ids=str,
    indirect=["exact_regime"],
)
def test_equals_the_masked_loop_bit_for_bit(solver, exact_regime):
    masked, compact, num_rows = Problem().solutions(solver, exact_regime)
    _assert_equal(masked, compact)
    needed = int(np.sum(masked.num_evaluations))
    assert needed <= num_rows <= 1.06 * needed + 1


def test_budget_and_tolerance_of_tensors():
    problem, solver = Problem(), solvers.Broyden(max_iter=14, history=3)

    @tf.function(autograph=False)
    def both(injection, max_iter, tol):
        request = {"max_iter": max_iter, "tol": tol}
        return [problem.solve(solver, c, injection, **request) for c in (False, True)]

    for max_iter, tol in ((1, 1e-3), (25, 1e-9)):
        budget = tf.constant(max_iter), tf.constant(tol)
        _assert_equal(*both(problem.injection, *budget))


def test_non_finite_sample_leaves():
    problem = Problem()
    bad = problem.injection["u"].numpy()
    bad[4] = np.nan
    problem.injection["u"] = tf.constant(bad)
    masked, compact, num_rows = problem.solutions(solvers.Anderson(max_iter=14))
    _assert_equal(masked, compact)
    assert compact.status[4] == solvers.DIVERGED
    assert num_rows <= np.sum(compact.num_evaluations) + 1


@pytest.mark.parametrize("batch", [0, 1])
def test_small_batches(batch):
    masked, compact, _ = Problem(batch).solutions(solvers.Anderson())
    _assert_equal(masked, compact)


def test_noise_is_that_of_the_whole_batch():
    solver = solvers.FixedPointIteration(max_iter=8, tol=None, noise=0.1)
    masked, compact, _ = Problem().solutions(solver, seed=tf.constant([1, 2]))
    _assert_equal(masked, compact)
