"""A sample that fails must not affect the other samples, the weights or the run."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, regularizers, solvers
from deq_keras.gradients import TruncatedGradient
from tests.layers.cells import HidingCell, TanhCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(6, 4)).astype("float32")
TRUNCATED = TruncatedGradient(3, 2, free_fraction=1.0, free_noise=0.0, checkpoints=3)
GRADIENTS = ("implicit", "neumann", "phantom", "unrolled", TRUNCATED, "reversible")
OTHERS = [0, 1, 3, 4, 5]


def _poisoned(value=np.nan):
    inputs = INPUTS.copy()
    inputs[2, 1] = value
    return inputs


def _solver(gradient, max_iter, **arguments):
    if gradient == "reversible":  # It takes two evaluations for a plain step.
        return solvers.FixedPointIteration(5 * max_iter, **arguments)
    return solvers.Anderson(max_iter, history=2, **arguments)


def _gradients(deq, inputs, rows):
    with tf.GradientTape() as tape:
        value = deq(inputs, training=True)
        loss = tf.reduce_sum(tf.square(tf.gather(value, rows)))
    variables = [weight.value for weight in deq.trainable_weights]
    return value, tape.gradient(loss, variables)


@pytest.mark.parametrize(
    "gradient, poison",
    [*zip(GRADIENTS, 2 * [np.nan, np.inf, -np.inf], strict=True)],
    ids=str,
)
def test_non_finite_input_in_training(gradient, poison):
    deq = layers.DEQ(TanhCell(5), gradient=gradient)
    deq(INPUTS)
    clean_value, clean = _gradients(deq, INPUTS, OTHERS)
    value, actual = _gradients(deq, _poisoned(poison), OTHERS)
    np.testing.assert_array_equal(
        tf.gather(value, OTHERS), tf.gather(clean_value, OTHERS)
    )
    np.testing.assert_array_equal(value[2], 0.0)
    for one, two in zip(actual, clean, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)
    # A loss over every sample stays usable as well.
    for slope in _gradients(deq, _poisoned(poison), list(range(6)))[1]:
        assert np.all(np.isfinite(slope))


@pytest.mark.parametrize(
    "solver",
    [
        solvers.FixedPointIteration(compact=True),
        "anderson",
        slow("fixed_point_iteration"),
        slow("broyden"),
        slow("peaceman_rachford"),
    ],
    ids=lambda solver: str(solver)[:20],
)
def test_non_finite_input_at_inference(solver):
    """The output of that sample is NaN; all others are as without it, bit for bit."""
    is_monotone = solver == "peaceman_rachford"
    cell = layers.MonotoneDenseCell(5) if is_monotone else TanhCell(5)
    deq = layers.DEQ(cell, solver, regularizer=None, name="deq")
    # A compact solver multiplies matrices of fewer rows.
    tolerance = 1e-6 if deq.solver.compact else 0.0
    call = tf.function(deq, input_signature=[tf.TensorSpec((None, 4))])
    clean, value = np.array(call(INPUTS)), np.array(call(_poisoned()))
    np.testing.assert_allclose(value[OTHERS], clean[OTHERS], 0, tolerance)
    assert np.isfinite(clean).all() and np.isnan(value[2]).all()
    assert np.isnan(call(_poisoned()[2:3])).all()
    assert np.isnan(deq(_poisoned())[2]).all()
    clean, solution = deq.solve(INPUTS), deq.solve(_poisoned())
    for rows, row in ((solution, 2), (deq.solve(_poisoned()[2:3]), 0)):
        assert rows.num_evaluations[row] == 1
        assert rows.status[row] == solvers.DIVERGED
        assert np.isinf(rows.residual[row]) and not np.any(rows.value[row])
        assert np.isnan(rows.trace.numpy()[:, row]).all()
    for field in ("num_evaluations", "status"):
        np.testing.assert_array_equal(
            getattr(solution, field).numpy()[OTHERS],
            getattr(clean, field).numpy()[OTHERS],
        )


@keras.saving.register_keras_serializable("deq_keras_tests.nonfinite")
class FailsLate(layers.EquilibriumCell):
    """f(z, u) = z / 2 + u, or NaN where z >= u + 0.9."""

    def call(self, state, injection):
        value = state / 2 + injection
        return tf.where(state >= injection + 0.9, value * np.nan, value)


@pytest.mark.parametrize("regime", ["eager", "graph"], indirect=True)
def test_a_sample_that_fails_late_keeps_its_best_iterate(regime):
    deq = layers.DEQ(FailsLate(), solvers.FixedPointIteration(9, 1e-9, "abs"))
    value = regime(deq)(np.array([[1.0], [0.5]], "float32"))
    # 0, 1, 1.5, 1.75, 1.875, 1.9375, NaN; and 0, 0.5, 0.75, ..., whose limit is 1.
    np.testing.assert_array_equal(value[0], 1.9375)
    np.testing.assert_allclose(value[1], 1.0 - 2.0**-9)


def test_loss_may_leave_out_samples_that_failed():
    """Then one step of training is the one without them."""

    class WeighedModel(keras.Model):
        def compute_loss(
            self, x=None, y=None, y_pred=None, sample_weight=None, training=True
        ):
            usable = self.get_layer("deq").last_status != solvers.DIVERGED
            y_pred = ops.where(usable[:, None], y_pred, 0.0)
            weight = ops.cast(usable, "float32")
            return super().compute_loss(x, y, y_pred, weight, training)

    targets = 1.0 + INPUTS[:, :1]
    results = []
    for x, y in ((_poisoned(), targets), (INPUTS[OTHERS], targets[OTHERS])):
        inputs = keras.Input((4,))
        deq = layers.DEQ(TanhCell(5), gradient="neumann", regularizer=None, name="deq")
        head = keras.layers.Dense(1, kernel_initializer="ones")
        model = WeighedModel(inputs, head(deq(inputs)))
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        model.compile(keras.optimizers.SGD(1.0), loss, run_eagerly=True)
        model.train_on_batch(x, y)
        results.append([w.numpy() for w in model.trainable_weights])
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_last_status_is_of_the_function_that_asks():
    deq = layers.DEQ(TanhCell(5))
    with pytest.raises(ValueError, match="`last_status`"):
        _ = deq.last_status
    statuses = {}
    for training in (False, True):
        deq(_poisoned(), training=training)
        statuses[training] = deq.last_status.numpy()
        assert statuses[training][2] == solvers.DIVERGED
        assert (statuses[training][OTHERS] != solvers.DIVERGED).all()

    @tf.function
    def call(inputs):
        deq(inputs)
        return deq.last_status

    np.testing.assert_array_equal(call(_poisoned()), statuses[False])
    with pytest.raises(ValueError, match="`last_status`"):
        _ = deq.last_status
    with layers.SolveScope(deq, max_iter=1, tol=0.0):
        deq(_poisoned())
    expected = np.full(6, solvers.MAX_ITER)
    expected[2] = solvers.DIVERGED
    np.testing.assert_array_equal(deq.last_status, expected)


class LogCell(TanhCell):
    """Finite at first, and NaN after a few evaluations where the input is large."""

    def call(self, state, injection):
        new = super().call(state, injection["u"])
        trap = tf.math.log(1.0 - injection["danger"] * tf.reduce_sum(state**2, -1))
        return new + 0.0 * trap[..., None]

    def inject(self, inputs, training=False):
        danger = tf.where(inputs[..., 0] > 50.0, 10.0, 0.0)
        return {"u": super().inject(inputs), "danger": danger}

    def initial_state(self, injection):
        return tf.zeros_like(injection["u"])


@pytest.mark.parametrize(
    "gradient, first, regime",
    [
        ("implicit", False, "eager"),
        slow(TRUNCATED, True, "eager"),
        (TRUNCATED, False, "graph"),
        ("reversible", False, "eager"),
        slow("phantom", True, "graph"),
        slow("unrolled", False, "eager"),
    ],
    indirect=["regime"],
    ids=str,
)
def test_cell_that_turns_non_finite(gradient, first, regime):
    """The values of the others stay. The step has no gradient if f was non-finite where
    it is differentiated: in the steps of unrolled, truncated and reversible gradients,
    or at the only point that other gradients linearize."""
    cell = LogCell(5)
    if first:
        cell.initial_state = lambda injection: tf.ones_like(injection["u"])
    deq = layers.DEQ(cell, _solver(gradient, max_iter=6), gradient, regularizer=None)
    inputs = INPUTS.copy()
    inputs[2, 0] = 100.0
    deq(INPUTS)
    solution = deq.solve(inputs)
    assert solution.status[2] == solvers.DIVERGED
    assert (solution.num_evaluations[2] == 1) == first
    assert np.all(np.isfinite(solution.value))

    compute = regime(lambda inputs, rows: _gradients(deq, inputs, rows))
    value, slopes = compute(inputs, list(range(6)))
    assert np.all(np.isfinite(value))
    clean_value, clean = compute(INPUTS, OTHERS)
    for i in OTHERS:
        np.testing.assert_array_equal(value[i], clean_value[i])
    for slope in slopes:
        assert np.all(np.isfinite(slope))
    is_skipped = first or deq.gradient.differentiates_iterates
    for one, two in zip(slopes, clean, strict=True):
        assert np.any(two) and np.any(one) != is_skipped


def test_samples_are_independent_where_no_shape_shows_their_rows():
    """For the fraction that takes free steps."""
    gradient = TruncatedGradient(3, 2, free_fraction=0.5, free_noise=0.0)
    solver = solvers.FixedPointIteration(max_iter=6)
    inputs = np.stack([INPUTS, INPUTS[::-1]], axis=1)  # (6, 2, 4)
    results = []
    for cell in (TanhCell(5), HidingCell(5)):
        deq = layers.DEQ(cell, solver, gradient, None, seed=1)
        deq(inputs)

        signature = [tf.TensorSpec((None, None, 4))]

        @tf.function(input_signature=signature, autograph=False)
        def compute(inputs, deq=deq):
            return _gradients(deq, inputs, OTHERS)

        deq.seed_generator.state.assign([0, 1])
        results.append(compute(inputs))
    (value, slopes), (other_value, other_slopes) = results
    np.testing.assert_array_equal(value, other_value)
    for one, two in zip(slopes, other_slopes, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


def test_values_are_nan_if_unrolled_steps_fail_for_all_samples():
    deq = layers.DEQ(LogCell(5), gradient="unrolled")
    inputs = INPUTS.copy()
    inputs[:, 0] = 100.0
    deq(INPUTS)
    deq.cell.initial_state = lambda injection: tf.ones_like(injection["u"])
    assert np.all(np.isnan(_gradients(deq, inputs, list(range(6)))[0]))


@pytest.mark.parametrize(
    "gradient", ["implicit", TRUNCATED, *map(slow, ("reversible", "unrolled"))], ids=str
)
def test_stem_gets_no_gradient_of_a_sample_that_fails(gradient):
    """The stem's output overflows for one sample."""
    inputs = 1e-30 * INPUTS
    overflowing = inputs.copy()
    overflowing[2] = 1e10
    stem = keras.layers.Dense(4, kernel_initializer=keras.initializers.Identity(1e30))
    deq = layers.DEQ(TanhCell(5), gradient=gradient, name="deq")

    def slopes(inputs, rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(deq(stem(inputs), training=True), rows))
        return tape.gradient(loss, [stem.kernel.value, stem.bias.value])

    assert not np.all(np.isfinite(stem(overflowing)))
    expected = slopes(inputs, OTHERS)
    for one, two in zip(slopes(overflowing, OTHERS), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)
    for slope in slopes(overflowing, list(range(6))):
        assert np.all(np.isfinite(slope))


@pytest.mark.parametrize(
    "gradient, mode",
    [
        ("implicit", {"run_eagerly": True}),
        (TRUNCATED, {"run_eagerly": True}),
        slow(TRUNCATED, {}),
        slow(TRUNCATED, {"jit_compile": True}),
        ("unrolled", {"run_eagerly": True}),
        slow("unrolled", {}),
    ],
    ids=str,
)
def test_training_continues(gradient, mode):
    deq = layers.DEQ(
        TanhCell(5),
        solver=_solver(gradient, max_iter=6, tol=1e-2),
        gradient=gradient,
        regularizer=regularizers.JacobianRegularizer(0.1),
        name="deq",
    )
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", **mode)
    history = model.fit(
        _poisoned(), INPUTS[:, :1], batch_size=6, epochs=2, verbose=0
    ).history
    for weight in model.weights:
        assert np.all(np.isfinite(weight.numpy())), weight.path
    for name in ("loss", "deq_residual", "deq_evaluations", "deq_penalty"):
        assert np.all(np.isfinite(history[name])), name
    if isinstance(gradient, str):  # The others take a few steps, and no more.
        np.testing.assert_allclose(history["deq_converged"], 5 / 6, rtol=1e-5)
    assert np.all(np.array(history["deq_converged"]) < 5.5 / 6)
    is_finite = np.isfinite(model.predict(_poisoned(), verbose=0))[:, 0]
    np.testing.assert_array_equal(is_finite, np.arange(6) != 2)


@pytest.mark.parametrize(
    "gradient, max_iter", [("implicit", 1), ("truncated", 1), slow("unrolled", 2)]
)
def test_smallest_budgets_train(gradient, max_iter):
    solver = solvers.FixedPointIteration(max_iter=max_iter)
    deq = layers.DEQ(TanhCell(5), solver, gradient, None, name="deq")
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", run_eagerly=True)
    history = model.fit(INPUTS, INPUTS[:, :1], verbose=0).history
    # Truncated steps are taught beyond the budget, up to twice as many.
    most = 2 * max_iter if gradient == "truncated" else max_iter
    assert max_iter <= history["deq_evaluations"][0] <= most
    assert np.isfinite(history["loss"][0])


@pytest.mark.parametrize(
    "gradient", ["auto", *map(slow, ["implicit", "neumann", "unrolled", "reversible"])]
)
def test_healthy_steps_pass_check_numerics(gradient):
    """Also placeholders that nobody reads must be finite."""
    tf.debugging.enable_check_numerics()
    try:
        deq = layers.DEQ(TanhCell(5), gradient=gradient)
        model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = INPUTS, INPUTS[:, :1]
        model.fit(*data, validation_data=data, verbose=0)
        assert np.all(np.isfinite(model.predict(INPUTS, verbose=0)))
        deq(INPUTS, training=True)
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.predict(_poisoned(), verbose=0)
    finally:
        tf.debugging.disable_check_numerics()
