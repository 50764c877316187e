"""A sample that fails must not take the batch, the weights or the run with it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, regularizers, serving, solvers
from deq_keras.gradients import TruncatedGradient
from tests.layers.cells import FunctionCell, TanhCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(6, 4)).astype("float32")
GRADIENTS = (
    "implicit",
    "neumann",
    "phantom",
    "unrolled",
    TruncatedGradient(3, 2, free_fraction=1.0, free_noise=0.0, remat=True),
)
# Neumann gradients train as implicit ones do, from which they differ in their solver.
# The steps of phantom and unrolled gradients are traced one by one, which takes long.
SOME_SLOW = [
    slow(gradient) if gradient in ("neumann", "phantom", "unrolled") else gradient
    for gradient in GRADIENTS
]


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
    [*zip([*GRADIENTS, "reversible"], 2 * [np.nan, np.inf, -np.inf], strict=True)],
    ids=str,
)
def test_a_non_finite_input(gradient, poison):
    deq = layers.DEQ(TanhCell(5), gradient=gradient)
    deq(INPUTS)
    others = [0, 1, 3, 4, 5]
    clean_value, clean = _gradients(deq, INPUTS, others)
    value, actual = _gradients(deq, _poisoned(poison), others)
    np.testing.assert_array_equal(
        tf.gather(value, others), tf.gather(clean_value, others)
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
        "fixed_point_iteration",
        solvers.FixedPointIteration(compact=True),
        "anderson",
        "broyden",
        "peaceman_rachford",
    ],
    ids=lambda solver: str(solver)[:20],
)
def test_inference_with_a_non_finite_input(solver):
    """The output of that sample is NaN; all others are as without it, bit for bit."""
    is_monotone = solver == "peaceman_rachford"
    cell = layers.MonotoneDenseCell(5) if is_monotone else TanhCell(5)
    deq = layers.DEQ(cell, solver, regularizer=None, name="deq")
    # A compact solver multiplies matrices of fewer rows.
    tolerance = 1e-6 if deq.solver.compact else 0.0
    others = [0, 1, 3, 4, 5]
    graph = tf.function(deq, input_signature=[tf.TensorSpec((None, 4))])
    for call in (deq, graph):
        clean, value = np.array(call(INPUTS)), np.array(call(_poisoned()))
        np.testing.assert_allclose(value[others], clean[others], 0, tolerance)
        assert np.isfinite(clean).all() and np.isnan(value[2]).all()
        assert np.isnan(call(_poisoned()[2:3])).all()
    clean, solution = deq.solve(INPUTS), deq.solve(_poisoned())
    for rows, row in ((solution, 2), (deq.solve(_poisoned()[2:3]), 0)):
        assert rows.num_evaluations[row] == 1
        assert rows.status[row] == solvers.DIVERGED
        assert np.isinf(rows.residual[row]) and not np.any(rows.value[row])
        assert np.isnan(rows.trace.numpy()[:, row]).all()
    for field in ("num_evaluations", "status"):
        np.testing.assert_array_equal(
            getattr(solution, field).numpy()[others],
            getattr(clean, field).numpy()[others],
        )


@pytest.mark.slow
def test_a_served_model_with_a_non_finite_input(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.DEQ(TanhCell(5), name="deq")(inputs))
    serving.export_saved_model(model, tmp_path / "model")
    served = serving.load(tmp_path / "model")
    others = [0, 1, 3, 4, 5]
    clean, poisoned = (served({"inputs": x}) for x in (INPUTS, _poisoned()))
    np.testing.assert_array_equal(poisoned["outputs"][others], clean["outputs"][others])
    assert np.isnan(poisoned["outputs"][2]).all()
    assert poisoned["status"].tolist() == [0, 0, solvers.DIVERGED, 0, 0, 0]


class WeighedModel(keras.Model):
    """Failed samples have a weight of zero."""

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        usable = self.get_layer("deq").last_status != solvers.DIVERGED
        y_pred = ops.where(usable[:, None], y_pred, 0.0)
        weight = ops.cast(usable, "float32")
        return super().compute_loss(x, y, y_pred, weight, training)


def _weighed_model(**arguments):
    inputs = keras.Input((4,))
    deq = layers.DEQ(TanhCell(5), gradient="neumann", regularizer=None, name="deq")
    head = keras.layers.Dense(1, kernel_initializer="ones")
    model = WeighedModel(inputs, head(deq(inputs)))
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(1.0), loss, **arguments)
    return model


@pytest.mark.parametrize("run_eagerly", [False, slow(True)])
def test_a_loss_may_leave_out_samples_that_failed(run_eagerly):
    """Then one step of training is the one without them."""
    others = [0, 1, 3, 4, 5]
    targets = 1.0 + INPUTS[:, :1]
    results = []
    for inputs, labels in ((_poisoned(), targets), (INPUTS[others], targets[others])):
        model = _weighed_model(run_eagerly=run_eagerly)
        before = model.evaluate(inputs, labels, verbose=0, return_dict=True)["loss"]
        model.train_on_batch(inputs, labels)
        results.append([before, *model.get_weights()])
    for one, two in zip(*results, strict=True):
        if np.asarray(one).dtype.kind == "f":
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_the_last_status_is_that_of_the_function_that_asks():
    deq = layers.DEQ(TanhCell(5))
    with pytest.raises(ValueError, match="`last_status` needs a call"):
        _ = deq.last_status
    statuses = {}
    for training in (False, True):
        deq(_poisoned(), training=training)
        statuses[training] = deq.last_status.numpy()
        assert statuses[training][2] == solvers.DIVERGED
        assert (statuses[training][[0, 1, 3, 4, 5]] != solvers.DIVERGED).all()

    @tf.function
    def call(inputs):
        deq(inputs)
        return deq.last_status

    np.testing.assert_array_equal(call(_poisoned()), statuses[False])
    with pytest.raises(ValueError, match="in the same function"):
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
    "first, compiled",
    [slow(False, False), (False, True), (True, False), slow(True, True)],
    ids=["later-eager", "later-graph", "at once-eager", "at once-graph"],
)
@pytest.mark.parametrize("gradient", [*SOME_SLOW, "reversible"], ids=str)
def test_a_cell_that_turns_non_finite(gradient, first, compiled):
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

    def compute(inputs, rows):
        return _gradients(deq, inputs, rows)

    if compiled:
        specs = [tf.TensorSpec((6, 4)), tf.TensorSpec((None,), tf.int32)]
        compute = tf.function(compute, specs, autograph=False)
    others = [0, 1, 3, 4, 5]
    value, slopes = compute(inputs, list(range(6)))
    assert np.all(np.isfinite(value))
    clean_value, clean = compute(INPUTS, others)
    for i in others:
        np.testing.assert_array_equal(value[i], clean_value[i])
    for slope in slopes:
        assert np.all(np.isfinite(slope))
    is_skipped = first or deq.gradient.differentiates_iterates
    for one, two in zip(slopes, clean, strict=True):
        assert np.any(two) and np.any(one) != is_skipped


class HidingCell(LogCell):
    """Its injection has a row for each sample, which the static shape does not show."""

    def inject(self, inputs, training=False):
        injection = super().inject(inputs, training)
        flat = ops.reshape(injection["u"], (-1, 5))
        hidden = ops.reshape(flat, (-1, ops.shape(inputs)[1], 5))
        return {"u": hidden, "danger": injection["danger"]}


@pytest.mark.parametrize("batch_size", [slow(6), None])
def test_samples_are_kept_apart_where_no_shape_shows_their_rows(batch_size):
    """For the fraction that takes free steps."""
    gradient = TruncatedGradient(3, 2, free_fraction=0.5, free_noise=0.0)
    solver = solvers.FixedPointIteration(max_iter=6)
    inputs = np.stack([INPUTS, INPUTS[::-1]], axis=1)  # (6, 2, 4)
    others = [0, 1, 3, 4, 5]
    results = []
    for cell in (LogCell(5), HidingCell(5)):
        deq = layers.DEQ(cell, solver, gradient, None, seed=1)
        deq(inputs)

        signature = [tf.TensorSpec((batch_size, None, 4))]

        @tf.function(input_signature=signature, autograph=False)
        def compute(inputs, deq=deq):
            return _gradients(deq, inputs, others)

        deq.seed_generator.state.assign([0, 1])
        results.append(compute(inputs))
    for value, slopes in results:
        np.testing.assert_array_equal(
            tf.gather(value, others), tf.gather(results[0][0], others)
        )
        for one, two in zip(slopes, results[0][1], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


def test_unrolled_steps_fail_for_all_samples():
    """Then nothing is left to train with, and the loss shows it."""
    deq = layers.DEQ(LogCell(5), gradient="unrolled")
    inputs = INPUTS.copy()
    inputs[:, 0] = 100.0
    deq(INPUTS)
    deq.cell.initial_state = lambda injection: tf.ones_like(injection["u"])
    assert np.all(np.isnan(_gradients(deq, inputs, list(range(6)))[0]))


def _with_stem(gradient):
    """Dense, DEQ, Dense: what is before the equilibrium trains as well."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                4, kernel_initializer=keras.initializers.Identity(), name="stem"
            ),
            layers.DEQ(TanhCell(5), gradient=gradient, name="deq"),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


@pytest.mark.parametrize("gradient", [*GRADIENTS, "reversible"], ids=str)
def test_a_stem_gets_no_gradient_of_a_sample_that_fails(gradient):
    """The stem's output overflows for one sample."""
    model = _with_stem(gradient)
    inputs = 1e-30 * INPUTS
    overflowing = inputs.copy()
    overflowing[2] = 1e10
    stem = model.get_layer("stem")
    stem.kernel.assign(1e30 * np.eye(4))

    def slopes(inputs, rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(model(inputs, training=True), rows))
        return tape.gradient(loss, [stem.kernel.value, stem.bias.value])

    assert not np.all(np.isfinite(stem(overflowing)))
    expected = slopes(inputs, [0, 1, 3, 4, 5])
    for one, two in zip(slopes(overflowing, [0, 1, 3, 4, 5]), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)
    for slope in slopes(overflowing, list(range(6))):
        assert np.all(np.isfinite(slope))


def test_a_nan_in_the_data_below_a_stem_is_seen_by_the_next_step():
    """The stem's own gradient is 0 * NaN: no layer above can help that."""
    model = _with_stem("neumann")
    model.compile("sgd", "mse")
    targets = INPUTS[:, :1]
    stop = keras.callbacks.TerminateOnNaN()
    fit = {"batch_size": 6, "epochs": 4, "verbose": 0, "callbacks": [stop]}
    losses = model.fit(_poisoned(), targets, **fit).history["loss"]
    np.testing.assert_array_equal(np.isfinite(losses), [True, False])
    # With the stem's weights, all samples fail: there is nothing to set aside.
    losses = model.fit(INPUTS, targets, **fit).history["loss"]
    np.testing.assert_array_equal(losses, [np.nan])
    assert np.isnan(
        model.evaluate(INPUTS, targets, verbose=0, return_dict=True)["loss"]
    )


@pytest.mark.parametrize("jit_compile", [False, slow(True)])
@pytest.mark.parametrize("gradient", [*SOME_SLOW, slow("reversible")], ids=str)
def test_training_goes_on(gradient, jit_compile):
    deq = layers.DEQ(
        TanhCell(5),
        solver=_solver(gradient, max_iter=6, tol=1e-2),
        gradient=gradient,
        regularizer=regularizers.JacobianRegularizer(0.1),
        name="deq",
    )
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", jit_compile=jit_compile)
    history = model.fit(
        _poisoned(), INPUTS[:, :1], batch_size=6, epochs=2, verbose=0
    ).history
    for weight in model.weights:
        assert np.all(np.isfinite(weight.numpy())), weight.path
    count = "deq_evaluations" if deq.gradient.uses_solver else "deq_steps"
    for name in ("loss", "deq_residual", count, "deq_penalty"):
        assert np.all(np.isfinite(history[name])), name
    if isinstance(gradient, str):  # The others take a few steps, and no more.
        np.testing.assert_allclose(history["deq_converged"], 5 / 6, rtol=1e-5)
    assert np.all(np.array(history["deq_converged"]) < 5.5 / 6)
    is_finite = np.isfinite(model.predict(_poisoned(), verbose=0))[:, 0]
    np.testing.assert_array_equal(is_finite, np.arange(6) != 2)


@pytest.mark.parametrize("max_iter", [1, slow(2)])
@pytest.mark.parametrize("gradient", [*SOME_SLOW[:4], "truncated"])
def test_the_smallest_budgets_train(gradient, max_iter):
    solver = solvers.Anderson(max_iter=max_iter)
    deq = layers.DEQ(TanhCell(5), solver, gradient, None, name="deq")
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    history = model.fit(INPUTS, INPUTS[:, :1], verbose=0).history
    # Truncated steps are taught beyond the budget, up to twice as many.
    most = 2 * max_iter if gradient == "truncated" else max_iter
    count = "deq_steps" if gradient == "truncated" else "deq_evaluations"
    assert max_iter <= history[count][0] <= most
    assert np.isfinite(history["loss"][0])


def test_an_expansive_cell_gives_finite_values_and_says_so():
    """The norm of f(z) overflows long before f(z) itself."""
    cell = FunctionCell(lambda z, u: 3.0 * z + u)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(max_iter=200), "phantom")
    solution = deq.solve(INPUTS)
    assert np.all(np.isfinite(solution.value))
    np.testing.assert_array_equal(solution.status, solvers.DIVERGED)
    assert np.min(solution.residual) > 0.5
