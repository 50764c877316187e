"""Truncated gradients against loops by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.solvers import SolveRequest
from deq_keras.testing.problems import relative_error
from tests.gradients.cases import (
    BATCH,
    FEATURES,
    START,
    Case,
    problem_of,
    steps_by_hand,
)
from tests.layers.cells import TanhCell
from tests.regimes import XLA_IS_SLOW

SEED = tf.constant([3, 4])
ITERATION = solvers.FixedPointIteration(max_iter=9, tol=None)


def _truncated(*args, **kwargs):
    return gradients.TruncatedGradient(*args, **{"free_noise": 0.0, **kwargs})


def _solve(gradient, case, solver=ITERATION, seed=SEED, start=None, **request):
    start = tf.zeros((BATCH, FEATURES), case.kernel.dtype) if start is None else start
    request = SolveRequest(start, seed=seed, **request)
    return gradient.solve(problem_of(case), request, solver)


@pytest.mark.parametrize("damping, expected", [(None, 0.6), (0.3, 0.3)])
def test_damping_is_that_of_the_solver_unless_given(damping, expected):
    case = Case("float64")
    solver = solvers.FixedPointIteration(max_iter=9, tol=None, damping=0.6)
    gradient = _truncated(4, 3, free_fraction=1.0, damping=damping)
    state, wanted = steps_by_hand(case, 4, expected, num_free_steps=3)
    np.testing.assert_allclose(_solve(gradient, case, solver).value, state, rtol=1e-12)
    actual = case.gradients(gradient, solver, case.sources)
    for got, want in zip(actual, wanted, strict=True):
        assert relative_error(got, want) < 1e-12


def test_residual_is_that_of_the_returned_state():
    case = Case("float64")
    equilibrium = _solve(_truncated(3, 2, free_fraction=1.0), case)
    injection = tf.matmul(case.inputs, case.projection)
    after = case.apply(equilibrium.value, injection, case.kernel, case.bias)
    expected = tf.norm(after - equilibrium.value, axis=1) / tf.norm(after, axis=1)
    solution = equilibrium.solution
    np.testing.assert_allclose(solution.residual, expected, rtol=1e-9)
    np.testing.assert_array_equal(solution.point, equilibrium.value)
    np.testing.assert_array_equal(solution.num_evaluations, [5] * BATCH)
    np.testing.assert_allclose(equilibrium.linearization.value, after, rtol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_fraction_of_the_samples_takes_free_steps(share):
    inputs = tf.ones((3000, 1))
    gradient = _truncated(2, 4, free_fraction=share)
    start = tf.zeros((3000, 1))
    with tf.GradientTape() as tape:
        tape.watch(start)
        equilibrium = gradient.solve(
            solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, inputs),
            SolveRequest(start, seed=SEED),
            ITERATION,
        )
    taken = equilibrium.solution.num_evaluations.numpy()
    assert set(taken) == ({2} if share == 0.0 else {2, 6})
    is_free = taken == 6
    assert abs(np.mean(is_free) - share) < 0.03
    values = np.where(is_free, 2 - 2 * 0.5**6, 2 - 2 * 0.5**2)
    np.testing.assert_allclose(equilibrium.value[:, 0], values, rtol=1e-6)
    # Samples without free steps are differentiated from the start.
    slopes = tape.gradient(equilibrium.value, start)[:, 0]
    np.testing.assert_allclose(slopes, np.where(is_free, 0.0, 0.25), rtol=1e-6)


@pytest.mark.parametrize("size", [3, None], ids=["static", "open"])
def test_a_fraction_of_few_samples_takes_free_steps_in_some_calls(size):
    gradient = _truncated(2, 4, free_fraction=0.2)

    @tf.function(input_signature=[tf.TensorSpec((size, 1)), tf.TensorSpec(2, "int32")])
    def num_free(start, seed):
        problem = solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, start)
        request = SolveRequest(start, seed=seed)
        taken = gradient.solve(problem, request, ITERATION).solution.num_evaluations
        return tf.reduce_sum(tf.cast(tf.equal(taken, 6), "int32"))

    found = [num_free(tf.ones((3, 1)), tf.constant([i, 3])) for i in range(200)]
    assert set(np.array(found)) == {0, 1}
    assert abs(np.mean(found) - 0.6) < 0.14  # Four standard deviations.


# States with and without positions.
STATES = {"positions": (BATCH, 5, FEATURES), "vector": (BATCH, FEATURES)}


def _evaluations(gradient, shape, num_draws):
    """Returns the numbers of steps from random states: (draws, samples)."""

    @tf.function(autograph=False)
    def draw(index):
        start = tf.random.stateless_normal(shape, [index, 1])
        problem = solvers.FixedPointProblem(lambda z, u: tf.cos(z + u), start)
        request = SolveRequest(start, seed=tf.stack([index, 0]))
        return gradient.solve(problem, request, ITERATION).solution.num_evaluations

    return np.array([draw(tf.constant(index)) for index in range(num_draws)])


def test_free_steps_leave_room_for_the_others():
    """n of 0 .. 3, then k of 1 .. 4 - n: sums of 1 / (4 (4 - n))."""
    gradient = _truncated("uniform", "uniform", 4, free_fraction=1.0)
    totals = _evaluations(gradient, STATES["vector"], 200)[:, 0]
    expected = [0, *np.cumsum([1 / 4, 1 / 3, 1 / 2, 1]) / 4]
    np.testing.assert_allclose(np.bincount(totals) / 200, expected, atol=0.11)


@pytest.mark.parametrize(
    "state, max_steps, expected",
    [
        ("positions", 4, {4}),
        ("positions", 8, {6, 7, 8}),
        ("positions", 30, {*range(6, 13)}),
        ("vector", 30, {12}),
    ],
)
def test_default_steps_depend_on_positions_and_room(state, max_steps, expected):
    gradient = _truncated(max_steps=max_steps, free_fraction=0.0, tol=0.0)
    drawn = _evaluations(gradient, STATES[state], 60)
    assert set(drawn.flat) == expected


@pytest.mark.parametrize("state, share", [("positions", 2 / 6), ("vector", 1.0)])
def test_default_fraction_depends_on_positions(state, share):
    """Of six samples, 0.3 are two, in nine of ten steps."""
    drawn = _evaluations(_truncated(2, 4), STATES[state], 20)
    shares = set(np.mean(drawn > 2, axis=1))
    assert shares - {0.0} == {share}
    assert (0.0 in shares) <= (state == "positions")


@pytest.mark.parametrize("max_iter", [1, 9])
def test_room_is_two_budgets_of_the_solver(max_iter):
    solver = solvers.FixedPointIteration(max_iter, tol=None)
    case = Case("float64")

    def total(gradient, seed=SEED):
        return int(_solve(gradient, case, solver, seed).solution.num_evaluations[0])

    all_steps = _truncated(free_fraction=0.0, tol=0.0)
    assert min(2 * max_iter, 6) <= total(all_steps) <= min(2 * max_iter, 12)
    gradient = _truncated(1, "uniform", free_fraction=1.0)
    totals = [total(gradient, tf.constant([i, 0])) for i in range(20)]
    assert max_iter < max(totals) <= 2 * max_iter


def _halving(gradient, inputs, regime=lambda call: call, solver=ITERATION, **request):
    """Returns the equilibrium of z = z / 2 + u from zero, and the slopes by u."""

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            found = gradient.solve(
                solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, inputs),
                SolveRequest(tf.zeros_like(inputs), seed=SEED, **request),
                solver,
            )
            loss = tf.reduce_sum(found.value)
        linearization = found.linearization
        penalized = linearization.value - linearization.point
        return found.value, found.solution, tape.gradient(loss, inputs), penalized

    return regime(compute)()


@XLA_IS_SLOW
def test_steps_stop_at_the_tolerance(regime):
    """The residuals of the points before steps 0, 1, 2, ... are 1, 1/3, 1/7, 1/15."""
    inputs = tf.constant([[1.0], [-3.0]])
    gradient = _truncated(8, 0, tol=0.07)
    value, solution, slopes, _ = _halving(gradient, inputs, regime)
    np.testing.assert_array_equal(solution.num_evaluations, [4, 4])
    assert int(solution.batch_evaluations) == 4
    np.testing.assert_allclose(value, inputs * (2 - 2 * 0.5**4), rtol=1e-6)
    np.testing.assert_allclose(slopes, [[2 - 2 * 0.5**4]] * 2, rtol=1e-6)


def test_a_given_number_of_steps_has_no_tolerance():
    solution = _halving(_truncated(9, 9, free_fraction=1.0), tf.ones((3, 1)))[1]
    np.testing.assert_array_equal(solution.num_evaluations, [18] * 3)
    fast = tf.zeros((3, 1))  # The initial state is the equilibrium.
    solution = _halving(_truncated(None, 0), fast)[1]
    np.testing.assert_array_equal(solution.num_evaluations, [1] * 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_failed_sample_does_not_change_the_stop(bad):
    gradient = _truncated(9, 9, free_fraction=1.0, tol=0.07)
    expected = _halving(gradient, tf.ones((2, 1)))[1].num_evaluations[0]
    solution = _halving(gradient, tf.constant([[1.0], [bad], [1.0]]))[1]
    np.testing.assert_array_equal(solution.num_evaluations.numpy()[[0, 2]], expected)


LONG = solvers.FixedPointIteration(max_iter=30, tol=None)


@pytest.mark.parametrize(
    "arguments, budget, expected",
    [
        ((8, 0, 8, 0.0), {}, 1.0),  # The gradient never takes more steps.
        ((3, 4, 9, 1.0), {}, 1.0),  # All samples take all steps.
        ((3, 4, 9, 0.5), {}, 0.5),  # Half of the samples take free steps.
        ((3, 4, 9, 0.5), {"max_iter": tf.constant(3)}, 1.0),  # A smaller drawn budget.
    ],
)
def test_penalty_is_for_samples_that_had_their_budget(arguments, budget, expected):
    *steps, fraction = arguments
    gradient = _truncated(*steps, free_fraction=fraction, tol=1e-9)
    _, solution, _, penalized = _halving(
        gradient, tf.ones((8, 1)), solver=LONG, **budget
    )
    assert np.mean(penalized != 0) == expected
    assert np.all(solution.residual > 0)  # The log shows all samples.


def _noisy(start, fraction):
    """Adds noise where f keeps its state."""
    gradient = _truncated(1, 1, free_fraction=fraction, free_noise=0.5)
    problem = solvers.FixedPointProblem(lambda z, u: z, tf.zeros((len(start), 1)))
    return gradient.solve(problem, SolveRequest(start, seed=SEED), ITERATION).value


def test_noise_is_relative_to_the_features_of_each_position():
    scales = np.array([0.0, 1e-3, 1.0, 1e3]).reshape(4, 1)
    start = tf.constant(np.ones((500, 4, 6)) * scales)
    value = _noisy(start, 1.0)
    deviation = np.std(value - start, axis=(0, 2))
    np.testing.assert_allclose(deviation, 0.5 * scales[:, 0], rtol=0.05)
    assert not np.array_equal(value[0] / start[0], value[1] / start[1])


def test_noise_is_only_for_samples_with_free_steps():
    value = _noisy(tf.ones((400,)), 0.25)  # A state without features.
    is_moved = value.numpy() != 1.0
    assert np.sum(is_moved) == 100
    assert abs(np.std(value.numpy()[is_moved]) - 0.5) < 0.1


def test_free_steps_ignore_the_solver():
    case = Case("float64")
    solver = solvers.Anderson(max_iter=9)
    value = _solve(_truncated(1, 5, free_fraction=1.0), case, solver).value
    expected, _ = steps_by_hand(case, 1, num_free_steps=5)
    np.testing.assert_allclose(value, expected, rtol=1e-9)


def test_inference_runs_the_solver():
    case = Case("float64")
    solver = solvers.Broyden(25, 1e-12)
    injection = tf.matmul(case.inputs, case.projection)

    def slopes(gradient):
        with tf.GradientTape() as tape:
            tape.watch(case.bias)
            equilibrium = gradient.infer(
                solvers.FixedPointProblem(
                    lambda z, u: case.apply(z, u, case.kernel, case.bias), injection
                ),
                START,
                solver,
            )
        assert np.all(equilibrium.solution.residual < 1e-9)
        return tape.gradient(equilibrium.value, case.bias)

    truncated = _truncated(4, 2)
    np.testing.assert_array_equal(
        slopes(truncated), slopes(gradients.NeumannGradient(3))
    )
    one = _truncated(1, 2)
    np.testing.assert_array_equal(
        slopes(one), slopes(gradients.PhantomGradient(1, 1.0))
    )


def test_inference_accepts_any_budget():
    inputs = np.ones((2, 3), "float32")
    deq = layers.DEQ(TanhCell(4), ITERATION, _truncated(4, 2))
    deq(inputs, training=True)
    deq.solver = solvers.FixedPointIteration(max_iter=1, tol=None)
    expected = deq.solve(inputs, SolveRequest(max_iter=1)).value
    np.testing.assert_array_equal(deq(inputs, training=False), expected)
    with pytest.raises(ValueError, match="num_steps.*Received"):
        deq(inputs, training=True)


def _layer_gradients(deq, inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = deq(inputs, training=True)
        losses = [tf.reduce_sum(leaf**2) for leaf in keras.tree.flatten(value)]
        loss = tf.add_n([tf.cast(one, "float32") for one in [*losses, *deq.losses]])
    weights = [weight.value for weight in deq.trainable_weights]
    return tape.gradient(loss, [*weights, *keras.tree.flatten(inputs)])


@pytest.mark.parametrize(
    "arguments", [{}, {"checkpoints": 2}, {"checkpoints": 1}], ids=str
)
def test_second_derivatives_are_those_of_the_steps(arguments):
    u = tf.constant([[0.3]], tf.float64)
    gradient = _truncated(2, 0, **arguments)
    with tf.GradientTape() as outer:
        outer.watch(u)
        with tf.GradientTape() as inner:
            inner.watch(u)
            value = gradient.solve(
                solvers.FixedPointProblem(lambda z, u: z**2 + u, u),
                SolveRequest(tf.zeros_like(u)),
                ITERATION,
            ).value  # u^2 + u
        first = inner.gradient(value, u)
    np.testing.assert_allclose(first, [[1.6]])
    np.testing.assert_allclose(outer.gradient(first, u), [[2.0]])


def test_recomputed_steps_store_no_activations():
    class DeepCell(TanhCell):
        def __init__(self, units):
            super().__init__(units)
            self.hidden = [keras.layers.Dense(7, "tanh") for _ in range(6)]
            self.out = keras.layers.Dense(units)

        def call(self, state, injection):
            hidden = state
            for layer in self.hidden:
                hidden = layer(hidden)
            return super().call(self.out(hidden), injection)

    inputs = tf.ones((5, 3))
    deq = layers.DEQ(DeepCell(6), regularizer=None)
    deq(inputs)

    def num_stacked(checkpoints):
        """How many tensors the forward loop stacks up for the backward loop."""
        deq.gradient = _truncated(4, 0, checkpoints=checkpoints)
        traced = tf.function(lambda x: _layer_gradients(deq, x), autograph=False)
        graph = traced.get_concrete_function(inputs).graph.as_graph_def()
        nodes = [node for fn in graph.library.function for node in fn.node_def]
        return sum(node.op == "TensorListPushBack" for node in nodes)

    # Tensors of each layer, which the repetition without failures shares.
    assert num_stacked(None) >= 7
    # The variables of the loop: the state, and a few numbers.
    assert num_stacked(4) <= 2 * 4


@pytest.mark.parametrize(
    "num_steps, num_free_steps", [(5, 0), ([1, 1, 1], 2), ("uniform", 4), (None, 4)]
)
def test_more_steps_than_room_raise(num_steps, num_free_steps):
    with pytest.raises(ValueError, match="num_steps.*Received"):
        gradients.TruncatedGradient(num_steps, num_free_steps, max_steps=4)
    gradient = gradients.TruncatedGradient(num_steps, num_free_steps)
    with pytest.raises(ValueError, match="num_steps.*Received"):
        _solve(gradient, Case("float64"), solvers.FixedPointIteration(max_iter=2))


def test_draws_without_a_seed_raise():
    with pytest.raises(ValueError, match="seed"):
        _solve(gradients.TruncatedGradient(), Case("float64"), seed=None)


def test_sample_that_fails_at_the_last_evaluation():
    """z^2 overflows at the residual's evaluation: others keep their gradient."""
    kernel = tf.Variable(1.0)
    start = tf.constant([[0.5], [1e10], [0.2]])

    def gradient(start):
        rows = tf.shape(start)[0]
        problem = solvers.FixedPointProblem(
            lambda z, u: u * z**2, kernel * tf.ones([rows, 1])
        )
        found = _truncated(1, 0).solve(
            problem, SolveRequest(start, seed=SEED), ITERATION
        )
        return found, tf.reduce_sum(found.value[0])

    with tf.GradientTape(persistent=True) as tape:
        found, loss = gradient(start)
        _, expected = gradient(start[:1])
        penalty = tf.reduce_sum(found.linearization.value - found.linearization.point)
    slope = tape.gradient(loss, kernel)
    np.testing.assert_allclose(slope, tape.gradient(expected, kernel))
    assert found.solution.status[1] == solvers.DIVERGED
    assert np.isfinite(penalty) and np.isfinite(tape.gradient(penalty, kernel))
    np.testing.assert_allclose(found.value[1], [1e20])


def test_sample_that_overflows_within_its_free_steps():
    """Its later states are finite: from 0, the steps reach infinity, 1 and 2."""
    found = _truncated(1, 2, free_fraction=1.0).solve(
        solvers.FixedPointProblem(lambda z, u: 1.0 / z + u, tf.ones((2, 1))),
        SolveRequest(tf.constant([[0.0], [1.0]]), seed=SEED),
        ITERATION,
    )
    has_failed = found.solution.status.numpy() == solvers.DIVERGED
    np.testing.assert_array_equal(has_failed, [True, False])
    np.testing.assert_allclose(found.value, [[0.0], [5 / 3]], rtol=1e-6)


@XLA_IS_SLOW
def test_a_given_room_is_independent_of_the_budget(regime):
    """The state of z = z + 1 counts the steps."""
    problem = solvers.FixedPointProblem(lambda z, u: z + u, tf.ones((2, 1)))
    gradient = _truncated(3, "uniform", max_steps=10, free_fraction=1.0)

    def compute(seed, max_iter):
        request = SolveRequest(tf.zeros((2, 1)), seed=seed, max_iter=max_iter)
        found = gradient.solve(problem, request, ITERATION)
        return found.value[:, 0], found.solution.num_evaluations

    compute = regime(compute)
    for max_iter in (2, 30):
        totals = []
        for seed in range(8):
            pair = compute(tf.constant([seed, 0]), tf.constant(max_iter))
            np.testing.assert_array_equal(*pair)
            totals.append(int(pair[1][0]))
        assert min(totals) < max(totals) <= 10


def test_free_steps_without_probability_do_not_limit_second_derivatives():
    assert gradients.TruncatedGradient(3, [1.0, 0.0]).second_order_limit is None
    assert gradients.TruncatedGradient(3, [1.0, 0.1]).second_order_limit is not None
