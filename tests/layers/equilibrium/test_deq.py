"""The DEQ layer: its values, its gradients, and its life as a Keras layer."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics, gradients, layers, regularizers, solvers
from tests import harness
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(7, 4)).astype("float32")
PAIR = {
    "x": INPUTS,
    "y": RANDOM.normal(size=(7, 2)).astype("float32"),
}


def _tanh(**kwargs):
    solver = solvers.Anderson(max_iter=12)
    arguments = {"gradient": "implicit", "regularizer": None, **kwargs}
    return layers.DEQ(TanhCell(5), solver=solver, **arguments)


def _configured(**kwargs):
    policy = {"dtype": kwargs["dtype"]} if "dtype" in kwargs else {}
    return layers.DEQ(
        TanhCell(5, **policy),
        solver=solvers.Broyden(max_iter=8, tol=1e-3),
        gradient=gradients.ImplicitGradient(solvers.FixedPointIteration(6)),
        regularizer=regularizers.JacobianRegularizer(0.1, probability=0.5),
        seed=3,
        **kwargs,
    )


def _phantom(**kwargs):
    policy = {"dtype": kwargs["dtype"]} if "dtype" in kwargs else {}
    return layers.DEQ(
        TanhCell(5, **policy),
        solver=solvers.FixedPointIteration(max_iter=20, damping=0.8),
        gradient=gradients.PhantomGradient(3),
        **kwargs,
    )


def _two_scales(**kwargs):
    policy = {"dtype": kwargs["dtype"]} if "dtype" in kwargs else {}
    return layers.DEQ(
        TwoScaleCell(3, **policy),
        solver=solvers.Anderson(max_iter=8, history=2),
        gradient="unrolled",
        regularizer=None,
        **kwargs,
    )


@pytest.mark.parametrize(
    "make_layer, inputs",
    [
        pytest.param(_configured, INPUTS, id="configured", marks=pytest.mark.slow),
        pytest.param(_phantom, INPUTS, id="phantom", marks=pytest.mark.slow),
        pytest.param(_two_scales, PAIR, id="two-scales", marks=pytest.mark.slow),
    ],
)
def test_is_a_keras_layer(make_layer, inputs, tmp_path):
    harness.check_layer(make_layer, inputs, tmp_path)


def test_the_value_is_f_of_the_equilibrium():
    deq = _tanh()
    deq.solver = solvers.Anderson(max_iter=60, tol=1e-6)
    value = deq(INPUTS)
    injection = deq.cell.inject(INPUTS)
    np.testing.assert_allclose(value, deq.cell(value, injection), atol=1e-5)
    np.testing.assert_array_equal(value, deq(INPUTS, training=True))
    np.testing.assert_array_equal(value, deq.solve(INPUTS).value)


@pytest.mark.parametrize("jit_compile", [False, slow(True)])
def test_weights_get_the_gradients_of_the_exact_equilibrium(jit_compile):
    """Against 80 unrolled applications, in float64."""
    cell = TanhCell(5, dtype="float64")
    deq = layers.DEQ(
        cell,
        solver=solvers.Broyden(max_iter=25, tol=1e-12),
        gradient="implicit",
        dtype="float64",
    )
    inputs = tf.constant(INPUTS, tf.float64)
    deq(inputs)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def implicit():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(tf.square(deq(inputs, training=True)))
        variables = [weight.value for weight in deq.trainable_weights]
        return tape.gradient(loss, [*variables, inputs])

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        injection = cell.inject(inputs)
        state = cell.initial_state(injection)
        for _ in range(80):
            state = cell(state, injection)
        loss = tf.reduce_sum(tf.square(state))
    variables = [weight.value for weight in deq.trainable_weights]
    expected = tape.gradient(loss, [*variables, inputs])
    assert len(expected) == 4
    for actual, oracle in zip(implicit(), expected, strict=True):
        np.testing.assert_allclose(actual, oracle, rtol=0, atol=1e-9)


def test_upstream_layers_train_with_partial_batches():
    hidden = keras.layers.Dense(6, activation="tanh")
    model = keras.Sequential(
        [keras.Input((4,)), hidden, _configured(), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
    before = hidden.kernel.numpy()
    targets = INPUTS[:, :1] * INPUTS[:, 1:2]
    history = model.fit(INPUTS, targets, batch_size=3, epochs=20, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert np.all(hidden.kernel.numpy() != before)
    whole = model.predict(INPUTS, batch_size=7, verbose=0)
    parts = model.predict(INPUTS, batch_size=3, verbose=0)  # The last one is alone.
    np.testing.assert_allclose(parts, whole, atol=1e-5)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.deq = _tanh()
        self.deq.solver = solvers.Anderson(max_iter=20, tol=1e-6, history=3)
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.head(self.deq(inputs, training=training))


@pytest.mark.parametrize(
    "arguments",
    [
        {"run_eagerly": True},
        {"jit_compile": False},
        slow({"jit_compile": True}),
        slow({"steps_per_execution": 2}),
    ],
    ids=lambda a: next(iter(a)) + str(next(iter(a.values()))),
)
def test_a_subclassed_model_trains_alike_in_every_mode(arguments):
    model = Subclassed()
    model(INPUTS)
    for i, weight in enumerate(model.trainable_weights):
        start = np.random.RandomState(i).normal(size=weight.shape) * 0.3
        weight.assign(start)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", **arguments)
    targets = INPUTS[:, :1]
    history = model.fit(
        INPUTS, targets, batch_size=4, epochs=2, shuffle=False, verbose=0
    ).history
    np.testing.assert_allclose(history["loss"], _losses_by_hand(), rtol=2e-4)
    assert model.evaluate(INPUTS, targets, verbose=0)[0] < history["loss"][-1]
    assert model.predict(INPUTS, verbose=0).shape == (7, 1)


@pytest.mark.parametrize("gradient", ["truncated", "phantom", "unrolled", "implicit"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_stateless_call_reads_the_weights_that_it_gets(gradient, policy):
    cell = TanhCell(5, dtype=policy)
    solver = solvers.FixedPointIteration(4, tol=None)
    deq = layers.DEQ(cell, solver, gradient=gradient, regularizer=None)
    deq(INPUTS)
    given = [tf.constant(1.5 * weight.numpy()) for weight in deq.trainable_weights]
    state = [weight.value for weight in deq.non_trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(given)
        outputs, _ = deq.stateless_call(given, state, INPUTS, training=True)
    stateless = tape.gradient(outputs, given)
    for weight, value in zip(deq.trainable_weights, given, strict=True):
        weight.assign(value)
    with tf.GradientTape() as tape:
        expected = deq(INPUTS, training=True)
    gradients = tape.gradient(expected, deq.trainable_weights)
    np.testing.assert_array_equal(outputs, expected)
    for one, two in zip(stateless, gradients, strict=True):
        np.testing.assert_array_equal(one, two)


@functools.cache
def _losses_by_hand():
    """The same training by hand, with plain iteration back-propagated."""
    shapes = [(5, 5), (4, 5), (5,), (5, 1), (1,)]
    recurrent, kernel, bias, head, offset = weights = [
        tf.Variable(np.random.RandomState(i).normal(size=shape) * 0.3, dtype="float32")
        for i, shape in enumerate(shapes)
    ]
    losses = []
    for _ in range(2):
        total = 0.0
        for rows in (slice(0, 4), slice(4, 7)):
            with tf.GradientTape() as tape:
                state = tf.zeros((len(INPUTS[rows]), 5))
                for _ in range(60):
                    state = tf.tanh(state @ recurrent + INPUTS[rows] @ kernel + bias)
                outputs = state @ head + offset
                loss = tf.reduce_mean(tf.square(outputs - INPUTS[rows, :1]))
            gradient = tape.gradient(loss, weights)
            for weight, slope in zip(weights, gradient, strict=True):
                weight.assign_sub(0.1 * slope)
            total += loss * len(INPUTS[rows])
        losses.append(float(total / len(INPUTS)))
    return losses


def test_warm_starts():
    deq = _tanh()
    deq.solver = solvers.Anderson(max_iter=30, tol=1e-4)
    solution = deq.solve(INPUTS)
    assert solution.batch_evaluations > 2
    warm = deq.solve(INPUTS, solvers.SolveRequest(solution.point))
    assert warm.batch_evaluations == 1
    np.testing.assert_array_equal(warm.point, solution.point)
    np.testing.assert_array_equal(
        deq(INPUTS, initial_state=solution.point), solution.value
    )


def test_a_warm_start_in_a_functional_model():
    inputs, start = keras.Input((4,)), keras.Input((5,))
    deq = _tanh()
    model = keras.Model([inputs, start], deq(inputs, initial_state=start))
    state = deq.solve(INPUTS, solvers.SolveRequest(max_iter=60, tol=1e-6)).value.numpy()
    np.testing.assert_allclose(model([INPUTS, state]), state, atol=1e-4)
    np.testing.assert_allclose(
        model.predict([INPUTS, state], verbose=0), state, atol=1e-4
    )


def test_a_poisoned_warm_start_starts_as_the_cell_says():
    deq = _tanh()
    start = np.zeros((7, 5), "float32")
    start[2] = np.nan
    np.testing.assert_array_equal(deq(INPUTS, initial_state=start), deq(INPUTS))


@pytest.mark.parametrize(
    "initial_state",
    [
        np.zeros((7, 3), "float32"),
        np.zeros((7, 1), "float32"),  # Would be broadcast.
        [np.zeros((7, 5), "float32")] * 2,
    ],
    ids=["shape", "broadcast", "structure"],
)
def test_a_warm_start_that_is_no_state_is_refused(initial_state):
    deq = _tanh()
    with pytest.raises(ValueError, match="initial_state"):
        deq(INPUTS, initial_state=initial_state)
    with pytest.raises(ValueError, match="initial_state"):
        deq.solve(INPUTS, solvers.SolveRequest(initial_state))


def test_a_warm_start_of_other_rows_is_refused_when_it_runs(tmp_path):
    """A graph of an open batch would broadcast a single row."""
    inputs, start = keras.Input((4,)), keras.Input((5,))
    deq = _tanh()
    model = keras.Model([inputs, start], deq(inputs, initial_state=start))
    specs = [tf.TensorSpec((None, 4)), tf.TensorSpec((None, 5))]
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    train = tf.function(
        lambda x, z: deq(x, initial_state=z, training=True), input_signature=specs
    )
    calls = [
        tf.function(lambda x, z: model([x, z]), input_signature=specs),
        lambda x, z: loaded.serve([x, z]),
        train,
    ]
    state = np.zeros((7, 5), "float32")
    for call in calls:
        assert call(INPUTS, state).shape == (7, 5)
        for rows, others in ((7, 1), (1, 7), (7, 0), (7, 6)):
            with pytest.raises(tf.errors.InvalidArgumentError, match="same number"):
                call(INPUTS[:rows], state[:others])


def test_settable_parts():
    deq = _tanh()
    deq.solver = "broyden"
    deq.gradient = {"class_name": "phantom", "num_steps": 2}
    deq.regularizer = regularizers.JacobianRegularizer(0.25)
    assert isinstance(deq.solver, solvers.Broyden)
    assert deq.gradient.num_steps == 2
    copy = layers.DEQ.from_config(deq.get_config())
    assert isinstance(copy.solver, solvers.Broyden)
    assert copy.regularizer.weight == 0.25
    deq.regularizer = None
    assert deq.regularizer is None
    for name in ("solver", "gradient", "regularizer"):
        with pytest.raises(ValueError, match=name):
            setattr(deq, name, "nonsense")


@pytest.mark.parametrize(
    "gradient, solver, regularizer",
    [
        ("truncated", "FixedPointIteration", "ResidualRegularizer"),
        ("unrolled", "FixedPointIteration", "ResidualRegularizer"),
        ("phantom", "Anderson", "ContractionRegularizer"),
        ("neumann", "Anderson", "ContractionRegularizer"),
        ("implicit", "Anderson", "ContractionRegularizer"),
    ],
)
def test_what_is_not_given_suits_the_gradient(gradient, solver, regularizer):
    deq = layers.DEQ(TanhCell(2), gradient=gradient)
    assert type(deq.solver).__name__ == solver
    assert type(deq.regularizer).__name__ == regularizer
    assert type(layers.DEQ.from_config(deq.get_config()).solver) is type(deq.solver)
    given = layers.DEQ(TanhCell(2), "broyden", gradient, None)
    assert (type(given.solver).__name__, given.regularizer) == ("Broyden", None)


def test_the_gradient_is_truncated_unless_it_is_given():
    assert type(layers.DEQ(TanhCell(2)).gradient) is gradients.TruncatedGradient


def test_bad_parts_are_refused_in_the_constructor():
    with pytest.raises(ValueError, match="solver.*'andersen'.*'anderson'"):
        layers.DEQ(TanhCell(2), solver="andersen")
    with pytest.raises(ValueError, match="gradient"):
        layers.DEQ(TanhCell(2), gradient="backprop")
    with pytest.raises((TypeError, ValueError), match="max_iter"):
        layers.DEQ(TanhCell(2), max_iter=3)


def test_phases_keep_the_optimizer():
    """Pretraining by back-propagation, then the equilibrium, one optimizer."""
    deq = layers.DEQ(
        TanhCell(5),
        solver=solvers.FixedPointIteration(max_iter=3, tol=None),
        gradient="unrolled",
        regularizer=None,
    )
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    targets = INPUTS[:, :1]
    model.compile(optimizer, loss="mse")
    first = model.fit(INPUTS, targets, epochs=2, verbose=0).history
    np.testing.assert_allclose(first["deq_evaluations"], 3.0)
    deq.solver = solvers.Anderson(max_iter=20, tol=1e-4)
    deq.gradient = "implicit"
    model.compile(optimizer, loss="mse")
    second = model.fit(INPUTS, targets, epochs=2, verbose=0).history
    assert second["deq_converged"][-1] == 1.0
    assert "deq_adjoint_evaluations" in second
    assert int(optimizer.iterations) == 4
    assert second["loss"][-1] < first["loss"][0]


@pytest.mark.parametrize("is_built", [False, True])
def test_output_shapes(is_built):
    deq = layers.DEQ(TwoScaleCell(2))
    inputs = {"x": np.ones((3, 4), "float32"), "y": np.ones((3, 1), "float32")}
    if is_built:
        deq(inputs)
    shapes = deq.compute_output_shape({"x": (None, 4), "y": (None, 1)})
    assert shapes == {"vector": (None, 2), "map": (None, 2, 1)}
    assert deq(inputs)["map"].shape == (3, 2, 1)


def test_time_distributed_over_a_symbolic_sequence():
    layer = keras.layers.TimeDistributed(layers.DEQ(TanhCell(5)))
    symbolic = keras.Input((6, 3))
    model = keras.Model(symbolic, layer(symbolic))
    assert model.output_shape == (None, 6, 5)
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    expected = layer.layer(x.reshape(12, 3))
    np.testing.assert_allclose(np.reshape(model(x), (12, 5)), expected, atol=1e-3)
    assert len(model.trainable_weights) == 3


@pytest.mark.slow
def test_time_distributed_trains_and_is_saved(tmp_path):
    symbolic = keras.Input((6, 3))
    deq = layers.DEQ(TanhCell(5), gradient="phantom", regularizer=None)
    layer = keras.layers.TimeDistributed(deq)
    model = keras.Model(symbolic, keras.layers.Dense(1)(layer(symbolic)))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    x = np.random.default_rng(0).normal(size=(4, 6, 3)).astype("float32")
    history = model.fit(x, x[..., :1], epochs=5, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)


class TestPrecision:
    """A layer computes in the dtype of its cell."""

    def test_the_dtype_of_the_cell_is_taken_over(self):
        inputs = INPUTS.astype("float64")
        deq = layers.DEQ(
            TanhCell(5, dtype="float64"), solvers.Anderson(max_iter=60, tol=1e-12)
        )
        assert deq.compute_dtype == "float64"
        value = deq(inputs)
        assert value.dtype == "float64"
        injection = deq.cell.inject(tf.constant(inputs))
        np.testing.assert_allclose(value, deq.cell(value, injection), atol=1e-11)
        copy = layers.DEQ.from_config(deq.get_config())
        assert copy.compute_dtype == copy.cell.compute_dtype == "float64"

    @pytest.mark.parametrize(
        ("of_cell", "of_layer"),
        [("float32", "float64"), ("float64", "float32"), ("float32", "mixed_bfloat16")],
    )
    def test_the_cell_computes_in_its_own_dtype(self, of_cell, of_layer):
        deq = layers.DEQ(TanhCell(5, dtype=of_cell), dtype=of_layer)
        inputs = np.asarray(INPUTS).astype(of_cell)
        solved = deq.solve(inputs).value
        assert solved.dtype == of_cell
        for training in (False, True):
            value = deq(inputs, training=training, initial_state=solved)
            assert value.dtype == deq.compute_dtype
            np.testing.assert_allclose(np.asarray(value, "float32"), solved, atol=0.05)
        symbolic = deq(keras.Input((4,)))
        assert symbolic.dtype == deq.compute_dtype

    @pytest.mark.parametrize("solver", ["auto", "anderson", "broyden"])
    def test_a_solver_of_a_name_converges_in_half_precision(self, solver):
        deq = layers.DEQ(TanhCell(5, dtype="mixed_bfloat16"), solver, name="deq")
        assert deq.dtype_policy.name == "mixed_bfloat16"
        model = keras.Sequential([keras.Input((4,)), deq])
        model.compile("sgd", "mse")
        logs = model.evaluate(INPUTS, np.zeros((7, 5)), verbose=0, return_dict=True)
        assert logs["deq_converged"] > 0.9
        np.testing.assert_array_equal(deq.solve(INPUTS).status, solvers.CONVERGED)

    @pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
    def test_a_tolerance_out_of_reach_warns(self, dtype):
        cell = TanhCell(5, dtype=dtype)
        with pytest.warns(UserWarning, match="out of reach in b?float16.*tol=1e-05"):
            layers.DEQ(cell, solvers.Anderson(tol=1e-5))
        for tol in (None, 1e-2):
            layers.DEQ(cell, solvers.Anderson(tol=tol))

    def test_the_tolerance_of_full_precision_is_that_of_the_solver(self):
        assert layers.DEQ(TanhCell(5)).solver.tol == 1e-3


def test_autograph_does_not_convert_a_solve(monkeypatch):
    """Converting the code of all solvers would take seconds."""
    from tensorflow.python.autograph.pyct import transpiler

    converted, convert = [], transpiler.PyToPy.transform_function
    monkeypatch.setattr(
        transpiler.PyToPy,
        "transform_function",
        lambda self, function, context: (
            converted.append(function.__module__) or convert(self, function, context)
        ),
    )
    deq = layers.DEQ(layers.DenseCell(4))

    @tf.function
    def solve(inputs):
        return deq.solve(inputs).value, diagnostics.spectral_radius(deq, inputs)

    solve(tf.ones((2, 3)))
    assert __name__ in converted
    assert not [name for name in converted if name.startswith("deq_keras")]


@pytest.mark.parametrize("argument", [{"max_iter": 10}, {"tol": 0.1}, {"damping": 0.5}])
def test_arguments_of_the_solver_are_passed_to_it(argument):
    ((name, value),) = argument.items()
    with pytest.raises(ValueError, match=rf"solver=.*FixedPointIteration\({name}="):
        layers.DEQ(layers.DenseCell(4), **argument)
    solver = solvers.FixedPointIteration(**argument)
    assert getattr(layers.DEQ(layers.DenseCell(4), solver).solver, name) == value


class StackedCell(layers.EquilibriumCell):
    """Two cells, of which the second reads the state of the first, as one cell."""

    def __init__(self, first, second, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = first, second

    def build(self, inputs_shape):
        self.first.build(inputs_shape)
        self.second.build((*inputs_shape[:-1], self.first.units))

    def inject(self, inputs, training=False):
        return self.first.inject(inputs)

    def initial_state(self, injection):
        below = self.first.initial_state(injection)
        return below, self.second.initial_state(self.second.inject(below))

    def call(self, state, injection):
        below, above = state
        return (
            self.first(below, injection),
            self.second(above, self.second.inject(below)),
        )


def test_one_layer_is_as_expressive_as_a_stack_of_two():
    """Theorem 2 of Bai et al. (2019): the stack has the same values and gradients."""
    cells = [TanhCell(4, dtype="float64"), TanhCell(6, dtype="float64")]
    options = {
        "solver": solvers.Broyden(max_iter=80, tol=1e-13),
        "gradient": gradients.ImplicitGradient(solvers.GMRES(max_iter=40, tol=1e-13)),
        "regularizer": None,
    }
    inputs = tf.constant(np.random.default_rng(0).normal(size=(3, 5)))
    stack = [layers.DEQ(cell, **options) for cell in cells]
    single = layers.DEQ(StackedCell(*cells, dtype="float64"), **options)

    def gradients_of(answer):
        with tf.GradientTape() as tape:
            value = answer()
            loss = tf.reduce_sum(tf.sin(value))
        weights = [*cells[0].trainable_variables, *cells[1].trainable_variables]
        return value, tape.gradient(loss, weights)

    stacked = gradients_of(
        lambda: stack[1](stack[0](inputs, training=True), training=True)
    )
    together = gradients_of(lambda: single(inputs, training=True)[1])
    assert len(stacked[1]) == 6
    for one, other in zip(
        tf.nest.flatten(stacked), tf.nest.flatten(together), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("solver", "gradient", "regularizer"),
    [
        ("auto", "Truncated", "Residual"),
        ("fixed_point_iteration", "Truncated", "Residual"),
        (solvers.FixedPointIteration(24, damping=0.5), "Truncated", "Residual"),
        (solvers.FixedPointIteration(23), "Unrolled", "Residual"),
        (solvers.FixedPointIteration(patience=3), "Neumann", "Contraction"),
        (solvers.Anderson(12), "Neumann", "Contraction"),
        ({"class_name": "broyden", "max_iter": 9}, "Neumann", "Contraction"),
        ("aitken", "Neumann", "Contraction"),
    ],
)
def test_a_solver_brings_a_gradient_and_a_regularizer(solver, gradient, regularizer):
    deq = layers.DEQ(layers.DenseCell(4), solver)
    assert type(deq.gradient).__name__ == f"{gradient}Gradient"
    assert type(deq.regularizer).__name__ == f"{regularizer}Regularizer"
    copy = layers.DEQ.from_config(deq.get_config())
    assert type(copy.gradient) is type(deq.gradient)


@pytest.mark.parametrize(
    "solver",
    [
        solvers.Anderson(12),
        solvers.FixedPointIteration(3),
        slow(solvers.FixedPointIteration(6, tol=None, damping=0.7)),
        slow("broyden"),
        slow("auto"),
    ],
)
def test_training_and_inference_compute_the_same_function(solver):
    """Two spirals: a model that trains other steps than it predicts with fails."""
    random = np.random.default_rng(0)
    label = random.integers(0, 2, 512)
    radius = random.uniform(0.2, 1.0, 512)
    angle = 5.0 * radius + np.pi * label
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    data = points.astype("float32"), label.astype("float32")
    keras.utils.set_random_seed(0)
    deq = layers.DEQ(layers.DenseCell(32), solver, name="deq")
    head = keras.layers.Dense(1, activation="sigmoid")
    model = keras.Sequential([keras.Input((2,)), deq, head])
    model.compile(
        keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"]
    )
    history = model.fit(*data, batch_size=64, epochs=25, verbose=0).history
    logs = model.evaluate(*data, verbose=0, return_dict=True)
    assert logs["accuracy"] > 0.97
    assert abs(logs["accuracy"] - history["accuracy"][-1]) < 0.03
