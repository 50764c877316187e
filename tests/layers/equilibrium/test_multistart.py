"""Solves of the layer that are repeated from several states."""

import numpy as np
import tensorflow as tf

from deq_keras import initial_states, layers, multistart, solvers
from tests.layers.cells import FunctionCell, TanhCell, TwoScaleCell
from tests.regimes import ALL_BUT_EAGER_ARE_SLOW

INPUTS = np.random.RandomState(0).normal(size=(4, 3)).astype("float32")


def _two_wells(solver="fixed_point_iteration", **arguments):
    """f(z, u) = tanh(3 z) has two equilibria that attract, for every input."""
    cell = FunctionCell(lambda z, u: tf.tanh(3.0 * z + 0.0 * u), tf.ones_like)
    return layers.DEQ(cell, solver, regularizer=None, **arguments)


@ALL_BUT_EAGER_ARE_SLOW
def test_first_restart_is_the_solve_without(regime):
    deq = layers.DEQ(TanhCell(5), "fixed_point_iteration")
    plain = deq.solve(INPUTS)

    def solve(inputs):
        select = lambda solutions: tf.zeros([4], tf.int32)  # noqa: E731
        return multistart.solve(deq, inputs, 3, select=select)

    found = regime(solve)(INPUTS)
    for name in ("value", "residual", "status", "num_evaluations", "trace"):
        expected = getattr(plain, name)
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-5)
    assert isinstance(found, multistart.SelectedSolution)
    # A contraction has one equilibrium.
    np.testing.assert_array_equal(found.agreement, 1.0)
    assert (found.total_evaluations > 2 * found.num_evaluations).numpy().all()
    np.testing.assert_array_equal(multistart.solve(deq, INPUTS, 1).value, plain.value)


def test_other_initial_states_find_other_equilibria():
    deq = _two_wells()
    inputs = np.ones((2, 8), "float32")
    found = multistart.solve(deq, inputs, 32, predict=lambda z: z[:, 0] > 0.0)
    share = found.agreement.numpy()[0]
    assert 0.2 < share < 0.8
    np.testing.assert_array_equal(found.agreement, share)
    voted = multistart.solve(
        deq, inputs, 32, select="vote", predict=lambda z: z[:, 0] > 0.0
    )
    assert (voted.agreement.numpy() >= 0.5).all()
    assert (voted.spread.numpy() > 0.1).all()
    np.testing.assert_array_equal(voted.status, solvers.CONVERGED)


def test_draws_follow_from_a_seed_and_not_from_the_batch():
    def states(deq, inputs, **arguments):
        seen = []

        def look(solutions):
            seen.append(solutions.point.numpy())
            return tf.zeros([len(inputs)], tf.int32)

        request = solvers.SolveRequest(max_iter=1, **arguments)
        multistart.solve(deq, inputs, 3, select=look, request=request)
        return seen[0]

    deq = _two_wells()
    inputs = np.ones((4, 8), "float32")
    drawn = states(deq, inputs)
    assert drawn.shape == (3, 4, 8)
    np.testing.assert_array_equal(drawn[0], 1.0)  # Where the cell starts.
    assert len(np.unique(drawn[1:])) == 2 * 8
    np.testing.assert_array_equal(drawn, states(deq, inputs))
    np.testing.assert_array_equal(drawn[:, 2:3], states(deq, inputs[:1]))
    np.testing.assert_array_equal(drawn, states(deq, inputs, seed=0))
    assert np.all(drawn[1:] != states(deq, inputs, seed=1)[1:])
    seeded = _two_wells(seed=1)
    np.testing.assert_array_equal(states(seeded, inputs), states(deq, inputs, seed=1))
    warm = states(deq, inputs, initial_state=7.0 * inputs)
    np.testing.assert_array_equal(warm[0], 7.0)
    np.testing.assert_array_equal(warm[1:], drawn[1:])


def test_random_initial_state_of_the_layer_draws_restarts():
    def largest(start):
        def find(solutions):
            return tf.argmax(tf.reduce_sum(solutions.point**2, axis=2))

        deq, request = _two_wells(initial_state=start), solvers.SolveRequest(max_iter=1)
        inputs = np.ones((1, 500), "float32")
        found = multistart.solve(deq, inputs, 3, select=find, request=request)
        return np.std(found.point)

    wide = initial_states.Normal(5.0)
    assert 0.8 < largest("cell") < 1.2
    assert 4.0 < largest(wide) < 6.0
    assert 4.0 < largest(initial_states.Mixed(["cell", wide])) < 6.0
    assert 0.8 < largest(initial_states.Mixed(["cell", "zeros"])) < 1.2
    half = initial_states.Mixed(["normal", wide, "cell"], [0.0, 0.5, 0.5])
    assert 4.0 < largest(half) < 6.0


def test_nests_and_samples_that_fail():
    solver = solvers.FixedPointIteration(compact=True)
    deq = layers.DEQ(TwoScaleCell(3), solver)
    inputs = {"x": INPUTS.copy(), "y": INPUTS}
    expected = deq.solve(inputs).value
    inputs["x"][1, 0] = np.nan
    found = multistart.solve(deq, inputs, 3)
    for one, two in zip(tf.nest.flatten(found.value), tf.nest.flatten(expected)):
        others = np.delete(one, 1, axis=0), np.delete(two, 1, axis=0)
        np.testing.assert_allclose(*others, atol=1e-2)
    assert found.status.numpy()[1] == solvers.DIVERGED
    np.testing.assert_array_equal(found.agreement, [1, 0, 1, 1])


def test_padding_stays_zero():
    inputs = np.ones((2, 5, 4), "float32")
    mask = np.array([[True] * 3 + [False] * 2, [True] * 5])
    deq = layers.DEQ(TanhCell(3), "fixed_point_iteration")
    found = multistart.solve(
        deq, inputs, 3, mask=mask, select=lambda s: tf.constant([1, 2])
    )
    np.testing.assert_array_equal(found.point.numpy()[~mask], 0.0)
    np.testing.assert_allclose(found.value, deq(inputs, mask=mask), atol=1e-2)


def test_empty_batch_in_half_precision():
    deq = layers.DEQ(TanhCell(3, dtype="mixed_bfloat16"))
    found = multistart.solve(deq, INPUTS[:0], 5)
    assert found.value.dtype == tf.bfloat16
    assert found.value.shape == (0, 3)


def test_budgets():
    deq = _two_wells()
    solve = tf.function(
        lambda max_iter: multistart.solve(
            deq, INPUTS, 3, request=solvers.SolveRequest(max_iter=max_iter, tol=0.0)
        ),
        autograph=False,
    )
    found = solve(tf.constant(4))
    assert found.batch_evaluations == 4
    np.testing.assert_array_equal(found.total_evaluations, 12)
