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
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import XLA_IS_SLOW, slow

SEED = tf.constant([3, 4])
ITERATION = solvers.FixedPointIteration(max_iter=9, tol=None)


def _truncated(*args, **kwargs):
    return gradients.TruncatedGradient(*args, **{"free_noise": 0.0, **kwargs})


def _solve(gradient, case, solver=ITERATION, seed=SEED, start=None, **request):
    start = tf.zeros((BATCH, FEATURES), case.kernel.dtype) if start is None else start
    request = SolveRequest(start, seed=seed, **request)
    return gradient.solve(problem_of(case), request, solver)


@pytest.mark.parametrize("damping, expected", [(None, 0.6), (1.0, 1.0), (0.3, 0.3)])
def test_steps_are_damped_as_the_solver_or_as_one_says(damping, expected):
    case = Case("float64")
    solver = solvers.FixedPointIteration(max_iter=9, tol=None, damping=0.6)
    gradient = _truncated(4, 3, free_fraction=1.0, damping=damping)
    state, wanted = steps_by_hand(case, 4, expected, num_free_steps=3)
    np.testing.assert_allclose(_solve(gradient, case, solver).value, state, rtol=1e-12)
    actual = case.gradients(gradient, solver, case.sources)
    for got, want in zip(actual, wanted, strict=True):
        assert relative_error(got, want) < 1e-12


def test_the_residual_is_that_of_the_state_that_is_returned():
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


def _drawn(gradient, num_seeds):
    """Numbers of free steps and of others, as they show in value and gradient."""
    case = Case("float64")
    by_hand = {}
    for total in range(1, 10):
        value, _ = steps_by_hand(case, total)
        by_hand[total] = value[0, 0].numpy()

    @tf.function(autograph=False)
    def compute(seed):
        start = tf.zeros((BATCH, FEATURES), tf.float64)
        with tf.GradientTape() as tape:
            tape.watch([start, case.bias])
            equilibrium = _solve(gradient, case, seed=seed, start=start)
            loss = tf.reduce_sum(equilibrium.value)
        of_start = tape.gradient(loss, start, unconnected_gradients="zero")
        total = equilibrium.solution.num_evaluations[0]
        return equilibrium.value[0, 0], total, tf.reduce_any(of_start != 0)

    draws = []
    for i in range(num_seeds):
        value, total, reaches = compute(tf.constant([i, 5]))
        np.testing.assert_allclose(value, by_hand[int(total)], rtol=1e-9)
        draws.append((int(total), bool(reaches)))
    return draws


def test_uniform_numbers_of_steps():
    """n of 0 .. M - 1, then k of 1 .. M - n."""
    draws = _drawn(_truncated("uniform", max_steps=4, free_fraction=1.0), 160)
    totals = [total for total, _ in draws]
    shares = np.bincount(totals, minlength=5)[1:] / len(draws)
    # P(n + k = t) = sum over n < t of 1 / (4 (4 - n)).
    expected = np.cumsum([1 / 4, 1 / 3, 1 / 2, 1]) / 4
    np.testing.assert_allclose(shares, expected, atol=0.12)
    # Without a free step the gradient reaches the start.
    without = np.mean([reaches for _, reaches in draws])
    assert abs(without - 1 / 4) < 0.12


def test_log_uniform_numbers_of_free_steps():
    """n of 0 .. M - k with P(n) = log((n + 2) / (n + 1)) / log(M - k + 2)."""
    gradient = _truncated(2, "log_uniform", 7, free_fraction=1.0)
    totals = [total for total, _ in _drawn(gradient, 200)]
    shares = np.bincount(totals, minlength=8)[2:] / len(totals)
    numbers = np.arange(6)
    expected = np.log((numbers + 2) / (numbers + 1)) / np.log(7)
    np.testing.assert_allclose(shares, expected, atol=0.1)


def test_numbers_of_steps_by_a_distribution():
    gradient = _truncated([0, 3, 1], [1, 0, 1], 9, free_fraction=1.0)
    totals = [total for total, _ in _drawn(gradient, 100)]
    shares = np.bincount(totals, minlength=7) / len(totals)
    expected = [0, 0, 3 / 8, 1 / 8, 3 / 8, 1 / 8, 0]
    np.testing.assert_allclose(shares, expected, atol=0.15)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_share_of_the_samples_takes_the_free_steps(share):
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
    # Who takes none of them is differentiated from the start.
    slopes = tape.gradient(equilibrium.value, start)[:, 0]
    np.testing.assert_allclose(slopes, np.where(is_free, 0.0, 0.25), rtol=1e-6)


@pytest.mark.parametrize(
    "size, padded, regime",
    [(1, False, "eager"), (8, True, "graph"), slow(8, True, "xla")],
    indirect=["regime"],
)
def test_samples_of_a_layer_take_their_own_free_steps(size, padded, regime):
    """Each is where so many steps lead, whoever else takes free ones."""
    random = np.random.RandomState(0)
    inputs = tf.constant(random.normal(size=(size, 5, 3)), tf.float32)
    mask = tf.constant(random.uniform(size=(size, 5)) < 0.6) if padded else None
    gradient = _truncated(2, 4, 6, free_fraction=0.4)
    deq = layers.DEQ(TanhCell(4), ITERATION, gradient, regularizer=None, seed=1)
    few, many = (
        deq.solve(inputs, SolveRequest(max_iter=max_iter), mask=mask).value.numpy()
        for max_iter in (2, 6)
    )
    call = regime(lambda: deq(inputs, mask=mask, training=True))
    shares = []
    for _ in range(30):
        value = call().numpy()
        is_few = np.all(np.isclose(value, few, atol=1e-5), axis=(1, 2))
        is_many = np.all(np.isclose(value, many, atol=1e-5), axis=(1, 2))
        assert np.all(is_few != is_many)
        shares.append(np.mean(is_many))
    assert len(set(shares)) <= 2
    assert abs(np.mean(shares) - 0.4) < 0.25


# States with and without positions.
STATES = {"positions": (BATCH, 5, FEATURES), "vector": (BATCH, FEATURES)}


def _evaluations(gradient, shape, index, solver=ITERATION):
    """Returns the number of steps of each sample from random states of a shape."""
    start = tf.random.stateless_normal(shape, [index, 1])
    problem = solvers.FixedPointProblem(lambda z, u: tf.cos(z + u), start)
    request = SolveRequest(start, seed=tf.constant([index, 0]))
    return gradient.solve(problem, request, solver).solution.num_evaluations.numpy()


@pytest.mark.parametrize(
    "state, max_steps, expected",
    [
        ("positions", 1, {1}),
        ("positions", 4, {4}),
        ("positions", 8, {6, 7, 8}),
        ("positions", 30, {*range(6, 13)}),
        ("vector", 4, {4}),
        ("vector", 30, {12}),
    ],
)
def test_default_steps_depend_on_positions_and_room(state, max_steps, expected):
    gradient = _truncated(max_steps=max_steps, free_fraction=0.0, tol=0.0)
    drawn = [set(_evaluations(gradient, STATES[state], index)) for index in range(60)]
    assert set.union(*drawn) == expected


@pytest.mark.parametrize("state, share", [("positions", 2 / 6), ("vector", 1.0)])
def test_default_fraction_depends_on_positions(state, share):
    """Of six samples, 0.3 are two, in nine of ten steps."""
    gradient = _truncated(2, 4)
    shares = {
        (_evaluations(gradient, STATES[state], index) > 2).mean() for index in range(20)
    }
    assert shares - {0.0} == {share}
    assert (0.0 in shares) <= (state == "positions")


def test_an_argument_that_is_given_is_kept():
    gradient = _truncated(3, 0, free_fraction=0.0)
    assert set(_evaluations(gradient, STATES["vector"], 0)) == {3}
    restored = type(gradient).from_config(gradients.TruncatedGradient().get_config())
    assert restored.free_fraction is None and restored.num_steps is None


@pytest.mark.parametrize("max_iter", [1, 2, 9])
def test_two_budgets_of_the_solver_are_the_room_unless_it_is_given(max_iter):
    solver = solvers.FixedPointIteration(max_iter, tol=None)
    case = Case("float64")

    def total(gradient, seed=SEED):
        return int(_solve(gradient, case, solver, seed).solution.num_evaluations[0])

    all_steps = _truncated(free_fraction=0.0, tol=0.0)
    assert min(2 * max_iter, 6) <= total(all_steps) <= min(2 * max_iter, 12)
    gradient = _truncated(1, "uniform", free_fraction=1.0)
    totals = [total(gradient, tf.constant([i, 0])) for i in range(60)]
    assert max(totals) == 2 * max_iter


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


@XLA_IS_SLOW
def test_free_steps_stop_at_the_tolerance_too(regime):
    inputs = tf.ones((3, 1))
    gradient = _truncated(2, 9, free_fraction=1.0, tol=0.07)
    value, solution, slopes, _ = _halving(gradient, inputs, regime)
    # The first step after four free ones has a smaller residual than the tolerance.
    np.testing.assert_array_equal(solution.num_evaluations, [5] * 3)
    np.testing.assert_allclose(value, [[2 - 2 * 0.5**5]] * 3, rtol=1e-6)
    np.testing.assert_allclose(slopes, [[1.0]] * 3, rtol=1e-6)


def test_a_given_number_of_steps_has_no_tolerance():
    solution = _halving(_truncated(9, 9, free_fraction=1.0), tf.ones((3, 1)))[1]
    np.testing.assert_array_equal(solution.num_evaluations, [18] * 3)
    fast = tf.zeros((3, 1))  # The initial state is the equilibrium.
    solution = _halving(_truncated(None, 0), fast)[1]
    np.testing.assert_array_equal(solution.num_evaluations, [1] * 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_failed_sample_does_not_change_when_steps_stop(bad):
    gradient = _truncated(9, 9, free_fraction=1.0, tol=0.07)
    expected = _halving(gradient, tf.ones((2, 1)))[1].num_evaluations[0]
    solution = _halving(gradient, tf.constant([[1.0], [bad], [1.0]]))[1]
    np.testing.assert_array_equal(solution.num_evaluations.numpy()[[0, 2]], expected)


LONG = solvers.FixedPointIteration(max_iter=30, tol=None)


@XLA_IS_SLOW
@pytest.mark.parametrize(
    "arguments, budget, expected",
    [
        ((8, 0, 8, 0.0), {}, 1.0),  # The gradient never takes more steps.
        ((3, 4, 9, 1.0), {}, 1.0),  # All samples take all steps.
        ((3, 4, 9, 0.5), {}, 0.5),  # Half of the samples take free steps.
        ((3, 4, 9, 0.5), {"max_iter": tf.constant(3)}, 1.0),  # A smaller drawn budget.
    ],
)
def test_a_penalty_is_for_samples_that_had_their_budget(
    arguments, budget, expected, regime
):
    *steps, fraction = arguments
    gradient = _truncated(*steps, free_fraction=fraction, tol=1e-9)
    _, solution, _, penalized = _halving(
        gradient, tf.ones((8, 1)), regime, LONG, **budget
    )
    assert np.mean(penalized != 0) == expected
    assert np.all(solution.residual > 0)  # The log shows all samples.


def test_a_penalty_is_for_samples_that_converged():
    gradient = _truncated(20, 0, 20, tol=0.07)
    _, solution, _, penalized = _halving(gradient, tf.ones((4, 1)), solver=LONG)
    assert np.all(solution.num_evaluations == 4)
    assert np.all(penalized != 0)


def test_noise_is_relative_to_the_features_of_each_position(regime):
    scales = np.array([0.0, 1e-3, 1.0, 1e3]).reshape(4, 1)
    start = tf.constant(np.ones((500, 4, 6)) * scales)
    gradient = _truncated(1, 1, free_fraction=1.0, free_noise=0.5)
    value = regime(
        lambda: (
            gradient.solve(
                solvers.FixedPointProblem(lambda z, u: z, tf.zeros((500, 1))),
                SolveRequest(start, seed=SEED),
                ITERATION,
            ).value
        )
    )()
    deviation = np.std(value - start, axis=(0, 2))
    np.testing.assert_allclose(deviation, 0.5 * scales[:, 0], rtol=0.05)
    assert not np.array_equal(value[0] / start[0], value[1] / start[1])


def test_noise_is_for_those_who_took_free_steps_alone():
    start = tf.ones((400,))  # A state without features.
    gradient = _truncated(1, 1, free_fraction=0.25, free_noise=0.5)
    value = gradient.solve(
        solvers.FixedPointProblem(lambda z, u: z, tf.zeros((400, 1))),
        SolveRequest(start, seed=SEED),
        ITERATION,
    ).value
    is_moved = value.numpy() != 1.0
    assert np.sum(is_moved) == 100
    assert abs(np.std(value.numpy()[is_moved]) - 0.5) < 0.1


def test_the_same_seed_draws_the_same_steps():
    gradient = _truncated(max_steps=9)
    case = Case("float64")
    values = [
        _solve(gradient, case, seed=seed).value for seed in (tf.constant([7, 0]), 7)
    ]
    np.testing.assert_array_equal(*values)


def test_a_drawn_budget_bounds_the_steps():
    gradient = _truncated("uniform", max_steps=9, free_fraction=1.0)
    for i in range(30):
        found = _solve(
            gradient, Case("float64"), seed=tf.constant([i, 0]), max_iter=tf.constant(3)
        )
        assert found.solution.num_evaluations[0] <= 3


def test_free_steps_are_plain_whatever_the_solver():
    case = Case("float64")
    solver = solvers.Anderson(max_iter=9)
    value = _solve(_truncated(1, 5, free_fraction=1.0), case, solver).value
    expected, _ = steps_by_hand(case, 1, num_free_steps=5)
    np.testing.assert_allclose(value, expected, rtol=1e-9)


def test_outside_of_training_the_solver_has_its_whole_budget():
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


def test_a_trained_model_is_tried_at_any_budget():
    inputs = np.ones((2, 3), "float32")
    deq = layers.DEQ(TanhCell(4), ITERATION, _truncated(4, 2))
    deq(inputs, training=True)
    deq.solver = solvers.FixedPointIteration(max_iter=1, tol=None)
    expected = deq.solve(inputs, SolveRequest(max_iter=1)).value
    np.testing.assert_array_equal(deq(inputs, training=False), expected)
    with pytest.raises(ValueError, match="num_free_steps . num_steps <= 2"):
        deq(inputs, training=True)


def test_a_batch_of_no_samples():
    gradient = _truncated(2, 1, free_fraction=0.5)
    deq = layers.DEQ(TanhCell(4), ITERATION, gradient)
    assert deq(np.ones((0, 3), "float32"), training=True).shape == (0, 4)


def _layer_gradients(deq, inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = deq(inputs, training=True)
        losses = [tf.reduce_sum(leaf**2) for leaf in keras.tree.flatten(value)]
        loss = tf.add_n([tf.cast(one, "float32") for one in [*losses, *deq.losses]])
    weights = [weight.value for weight in deq.trainable_weights]
    return tape.gradient(loss, [*weights, *keras.tree.flatten(inputs)])


@pytest.mark.slow
@XLA_IS_SLOW
@pytest.mark.parametrize(
    "cell, policy",
    [(TanhCell, "mixed_bfloat16"), (TwoScaleCell, "float64")],
    ids=["bfloat16", "nest"],
)
def test_rematerialised_steps_have_the_same_gradients(cell, policy, regime):
    keras.config.set_dtype_policy(policy)
    random = np.random.RandomState(0)
    dtype = "float64" if policy == "float64" else "float32"
    inputs = tf.constant(random.normal(size=(5, 3)), dtype)
    if cell is TwoScaleCell:
        inputs = {"x": inputs, "y": inputs + 1.0}
    slopes = []
    for arguments in ({}, {"remat": True}, {"checkpoints": 2}):
        keras.utils.set_random_seed(2)
        gradient = _truncated(4, 2, **arguments)
        deq = layers.DEQ(cell(6), gradient=gradient, seed=1)
        deq(inputs)
        slopes.append(regime(lambda x, deq=deq: _layer_gradients(deq, x))(inputs))
    tolerance = 1e-9 if policy == "float64" else 3e-2
    for plain, *others in zip(*slopes, strict=True):
        assert np.any(plain)
        for again in others:
            assert relative_error(again, plain) < tolerance


@pytest.mark.parametrize(
    "arguments", [{}, {"remat": True}, {"checkpoints": 1}], ids=str
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


def test_rematerialised_steps_keep_states_and_no_activations():
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

    def num_stacked(remat):
        return _num_stacked(DeepCell(6), _truncated(4, 0, remat=remat))

    # Tensors of each layer, which the repetition without failures shares.
    assert num_stacked(False) >= 7
    # The variables of the loop: the state, and a few numbers.
    assert num_stacked(True) <= 2 * 4


def test_the_residuals_of_a_tolerance_are_not_differentiated():
    without, with_tol = (
        _num_stacked(TanhCell(6), _truncated(4, 0, tol=tol)) for tol in (None, 0.01)
    )
    assert with_tol == without > 0


def _num_stacked(cell, gradient):
    """Returns how many tensors the forward loop stacks up for the backward loop."""
    deq = layers.DEQ(cell, gradient=gradient, regularizer=None)
    inputs = tf.ones((5, 3))
    deq(inputs)
    traced = tf.function(lambda x: _layer_gradients(deq, x))
    graph = traced.get_concrete_function(inputs).graph.as_graph_def()
    nodes = [node for fn in graph.library.function for node in fn.node_def]
    return sum(node.op == "TensorListPushBack" for node in nodes)


def test_two_ways_to_store_states_are_refused():
    with pytest.raises(ValueError, match="remat=True, checkpoints=2"):
        gradients.TruncatedGradient(remat=True, checkpoints=2)


@pytest.mark.parametrize(
    "num_steps, num_free_steps, max_steps",
    [
        (5, 0, 4),
        (2, 3, 4),
        ([1, 1, 1], 2, 4),
        ("uniform", 4, 4),
        (4, [1, 1], 4),
        (None, 4, 4),
    ],
)
def test_more_steps_than_there_is_room_for_are_refused(
    num_steps, num_free_steps, max_steps
):
    with pytest.raises(ValueError, match="num_free_steps . num_steps <= 4"):
        gradients.TruncatedGradient(num_steps, num_free_steps, max_steps)
    gradient = gradients.TruncatedGradient(num_steps, num_free_steps)
    solver = solvers.FixedPointIteration(max_iter=max_steps // 2)
    with pytest.raises(ValueError, match="num_free_steps . num_steps <= 4"):
        _solve(gradient, Case("float64"), solver)


def test_draws_without_a_seed_are_refused():
    with pytest.raises(ValueError, match="seed"):
        _solve(gradients.TruncatedGradient(), Case("float64"), seed=None)


def test_a_step_evaluates_f_at_its_result_once():
    """The residual and the penalty share the evaluation."""
    count = tf.Variable(0)

    def function(z, u):
        count.assign_add(1)
        return 0.5 * tf.tanh(z) + u

    problem = solvers.FixedPointProblem(function, tf.ones((2, 3)))
    request = SolveRequest(tf.zeros((2, 3)), seed=SEED)
    equilibrium = _truncated(3, 2, free_fraction=1.0).solve(problem, request, ITERATION)
    assert int(count) == 2 + 3 + 1
    value = equilibrium.linearization.value
    np.testing.assert_array_equal(equilibrium.solution.value, value)


def test_a_sample_that_fails_at_the_result_alone():
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
