"""The contract of equilibrium cells, and the errors of those that break it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, solvers
from tests.layers.cells import FunctionCell, TanhCell

INPUTS = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


def test_defaults():
    cell = layers.EquilibriumCell()
    assert cell.inject(INPUTS) is INPUTS
    start = cell.initial_state({"a": ops.ones((2, 3)), "b": (ops.ones((2, 1)),)})
    np.testing.assert_array_equal(start["a"], np.zeros((2, 3)))
    np.testing.assert_array_equal(start["b"][0], np.zeros((2, 1)))
    with pytest.raises(NotImplementedError, match="EquilibriumCell.*call"):
        cell(INPUTS, INPUTS)


def test_any_layer_of_state_and_injection_is_a_cell():
    class Plain(keras.layers.Layer):
        def call(self, state, injection):
            return 0.5 * state + injection

    np.testing.assert_allclose(
        layers.DEQ(Plain(), solver="broyden")(INPUTS), 2 * INPUTS, atol=1e-3
    )


def test_inject_needs_no_argument_but_the_inputs():
    class Projected(layers.EquilibriumCell):
        def inject(self, inputs):
            return 2 * inputs

        def call(self, state, injection):
            return 0.5 * state + injection

    deq = layers.DEQ(Projected(), solver="broyden", regularizer=None)
    np.testing.assert_allclose(deq(INPUTS), 4 * INPUTS, atol=1e-3)
    np.testing.assert_allclose(deq(INPUTS, training=True), 4 * INPUTS, atol=0.3)


def test_a_functional_model_of_two_inputs_is_a_cell():
    state, injection = keras.Input((3,)), keras.Input((3,))
    outputs = ops.tanh(keras.layers.Dense(3)(state) * 0.1 + injection)
    cell = keras.Model([state, injection], outputs)
    deq = layers.DEQ(cell, gradient="implicit")
    value = deq(INPUTS)
    np.testing.assert_allclose(value, cell([value, ops.array(INPUTS)]), atol=5e-3)
    assert len(deq.trainable_weights) == 2


@pytest.mark.parametrize(
    "cell", ["tanh", None, lambda z, u: z], ids=["name", "none", "function"]
)
def test_what_is_no_layer_is_refused(cell):
    with pytest.raises(ValueError, match="`cell` must be a Keras layer.*Received"):
        layers.DEQ(cell)


def test_a_functional_model_of_a_dict_is_refused():
    inputs = {name: keras.Input((3,), name=name) for name in ("state", "x")}
    cell = keras.Model(inputs, inputs["state"] + inputs["x"])
    with pytest.raises(ValueError, match="a functional model with a list"):
        layers.DEQ(cell)


def test_no_initial_state_is_refused():
    cell = FunctionCell(lambda z, u: z, lambda u: {"a": None})
    with pytest.raises(ValueError, match=r"`FunctionCell.initial_state`.*'a': None"):
        layers.DEQ(cell)(INPUTS)


def test_an_input_that_is_no_tensor_is_refused():
    for inputs in ({"a": INPUTS, "b": None}, None):
        with pytest.raises(ValueError, match="must be tensors. Leave out.*=None"):
            layers.DEQ(TanhCell(3))(inputs)


def _sparse():
    return tf.sparse.from_dense(INPUTS)


@pytest.mark.parametrize(
    "make",
    [
        _sparse,
        lambda: [INPUTS, _sparse()],
        lambda: tf.ragged.constant([[1.0], [1.0, 2.0]]),
        lambda: keras.Input((3,), sparse=True),
    ],
    ids=["sparse", "list", "ragged", "symbolic"],
)
def test_sparse_and_ragged_inputs_are_refused(make):
    with pytest.raises(ValueError, match=r"dense tensors.*Received: inputs.*="):
        layers.DEQ(TanhCell(3))(make())


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("shape", [(8, 2), (1, 2), ()])
def test_inputs_with_other_numbers_of_rows_are_refused(shape, dtype):
    cell = FunctionCell(lambda z, u: 0.5 * z + u[0], lambda u: ops.zeros_like(u[0]))
    inputs = [tf.ones((3, 4)), tf.ones(shape, dtype)]
    with pytest.raises(ValueError, match="inputs must have the same number of rows"):
        layers.DEQ(cell)(inputs)


class NestedCell(layers.EquilibriumCell):
    """Solves an inner equilibrium at each evaluation."""

    def __init__(self, when, **kwargs):
        super().__init__(**kwargs)
        self.when = when
        if when == "made":
            self.inner = self._make_inner()

    def _make_inner(self):
        return layers.DEQ(TanhCell(3), name="inner")

    def build(self, state_shape, injection_shape):
        if self.when == "built":
            self.inner = self._make_inner()

    def call(self, state, injection):
        return 0.5 * self.inner(state) + injection


def test_an_equilibrium_within_a_cell_is_refused():
    message = "must not contain a DEQ layer.*in sequence.*NestedCell.*'inner'"
    with pytest.raises(ValueError, match=message):
        layers.DEQ(NestedCell("made"))
    layer = layers.DEQ(NestedCell("built"))
    with pytest.raises(ValueError, match=message):
        layer(INPUTS)
    inputs = keras.Input((3,))
    outputs = layers.DEQ(TanhCell(3), name="inner")(inputs)
    with pytest.raises(ValueError, match="must not contain.*Functional.*'inner'"):
        layers.DEQ(keras.Model([inputs, keras.Input((3,))], outputs))


class WideCell(layers.EquilibriumCell):
    """Adds inputs of one width to states of another."""

    def __init__(self, has_start, **kwargs):
        super().__init__(**kwargs)
        self.has_start = has_start
        self.recurrent = keras.layers.Dense(8, dtype=self.dtype_policy)

    def initial_state(self, injection):
        if not self.has_start:
            return super().initial_state(injection)
        return ops.zeros((ops.shape(injection)[0], 8), injection.dtype)

    def call(self, state, injection):
        return ops.tanh(self.recurrent(state) + injection)


@pytest.mark.parametrize("has_start, width", [(False, 3), (True, 8)])
def test_inputs_of_another_width_than_the_state_are_to_be_projected(has_start, width):
    message = rf"project the inputs in `inject`.*state=\(4, {width}\), injection=\(4, 3"
    with pytest.raises(ValueError, match=message) as caught:
        layers.DEQ(WideCell(has_start))(INPUTS)
    assert "must be equal" in str(caught.value)
    symbolic = keras.Input((3,))
    with pytest.raises(ValueError, match=r"`inject`.*injection=\(None, 3"):
        layers.DEQ(WideCell(has_start))(symbolic)


def test_errors_of_a_cell_that_are_not_about_shapes_stay_as_they_are():
    def refuse(state, injection):
        raise ValueError("Only on Sundays.")

    with pytest.raises(ValueError, match="Only on Sundays") as caught:
        layers.DEQ(FunctionCell(refuse))(INPUTS)
    assert "project" not in str(caught.value)


NORMS = {
    "keras_layer": keras.layers.LayerNormalization,
    "keras_group": lambda: keras.layers.GroupNormalization(3),
    "layer": layers.LayerNormalization,
    "group": lambda: layers.GroupNormalization(3),
    "root_mean_square": keras.layers.RMSNormalization,
}


@pytest.mark.parametrize(
    "name, regularizer",
    [
        *((name, "contraction") for name in NORMS),
        *(("keras_layer", other) for other in ("jacobian", "residual", None)),
    ],
)
def test_norms_with_inexact_second_derivatives_are_named(name, regularizer):
    norm = NORMS[name]()
    cell = FunctionCell(lambda z, u: ops.tanh(norm(z) + u))
    cell.norm = norm
    layer = layers.DEQ(cell, "fixed_point_iteration", regularizer=regularizer)
    layer(INPUTS)
    if "keras" in name and regularizer in ("jacobian", "contraction"):
        with pytest.warns(UserWarning, match="deq_keras.layers.LayerNormalization"):
            layer(INPUTS, training=True)
    layer(INPUTS, training=True)  # Once: warnings are errors.


BROKEN = {
    "shape": (lambda z, u: z[:, :2], r"state.*\(4, 3\).*\(4, 2\)"),
    "dtype": (lambda z, u: ops.cast(z, "float16"), "float32.*float16"),
    "structure": (lambda z, u: (z, z), "structure"),
}


@pytest.mark.parametrize("function, message", BROKEN.values(), ids=BROKEN)
def test_a_cell_that_changes_the_state_is_refused(function, message):
    with pytest.raises(ValueError, match=f"FunctionCell.call.*{message}"):
        layers.DEQ(FunctionCell(function))(INPUTS)


def test_the_leaf_that_changed_is_named():
    cell = FunctionCell(
        lambda z, u: {"good": z["good"], "bad": z["bad"][:, :1]},
        lambda u: {"good": ops.zeros_like(u), "bad": ops.zeros_like(u)},
    )
    with pytest.raises(ValueError, match=r"state\['bad'\]"):
        layers.DEQ(cell)(INPUTS)


class RegularizedInjection(layers.EquilibriumCell):
    """Adds a loss of its injection by `add_loss`, and one by a sublayer."""

    def __init__(self):
        super().__init__()
        self.double = keras.layers.Rescaling(2.0, activity_regularizer="l1")

    def inject(self, inputs):
        self.add_loss(ops.mean(inputs**2))
        return self.double(inputs)

    def call(self, state, injection):
        return 0.5 * state + injection


def test_inject_may_add_losses():
    deq = layers.DEQ(RegularizedInjection(), regularizer=None)
    activity = deq.cell.double.activity_regularizer(2 * INPUTS) / len(INPUTS)
    expected = np.mean(INPUTS**2) + activity
    for inputs in (INPUTS, INPUTS, INPUTS[:2]):
        deq(inputs, training=True)
        assert len(deq.losses) == 2
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    model.compile("sgd", lambda targets, outputs: 0.0 * ops.mean(outputs, axis=-1))
    history = model.fit(INPUTS, INPUTS, verbose=0).history
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)


class LayerCell(layers.EquilibriumCell):
    """Ends with a layer, which gets these arguments."""

    def __init__(self, layer, **arguments):
        super().__init__()
        self.layer = layer
        self.arguments = arguments

    def call(self, state, injection):
        return self.layer(0.5 * state + injection, **self.arguments)


def _dropout_cell():
    return LayerCell(keras.layers.Dropout(0.5), training=True)


def _batch_normalization_cell():
    return LayerCell(keras.layers.BatchNormalization(), training=True)


class StatelessNoiseCell(layers.EquilibriumCell):
    def call(self, state, injection):
        return 0.1 * state + injection + tf.random.normal(tf.shape(state))


class LossCell(layers.EquilibriumCell):
    def call(self, state, injection):
        self.add_loss(ops.sum(state))
        return 0.5 * state + injection


class CountingCell(layers.EquilibriumCell):
    def build(self, *shapes):
        self.counter = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, state, injection):
        self.counter.assign_add(1.0)
        return 0.5 * state + injection


IMPURE = [
    (_dropout_cell, "sample masks in `inject`"),
    (StatelessNoiseCell, "sample masks in `inject`"),
    (LossCell, "added a loss"),
    (_batch_normalization_cell, "updates variables.*BatchNormalization"),
    (CountingCell, "updates variables"),
]


@pytest.mark.parametrize(
    "make, message", IMPURE, ids=lambda x: getattr(x, "__name__", "")
)
def test_an_impure_cell_is_refused(make, message):
    """At its first call, be it eager, symbolic or within `fit`."""

    def fit(inputs):
        model = keras.Sequential([layers.DEQ(make())])
        model.compile(loss="mse")
        model.fit(inputs, inputs, verbose=0)

    symbolic = keras.Input((3,))
    for call, inputs in (
        (layers.DEQ(make()), INPUTS),
        (layers.DEQ(make()), symbolic),
        (fit, INPUTS),
    ):
        with pytest.raises(ValueError, match=message) as error:
            call(inputs)
        assert type(make()).__name__ in str(error.value)


def test_dropout_in_training_alone_is_refused_too():
    deq = layers.DEQ(LayerCell(keras.layers.Dropout(0.5)))
    np.testing.assert_allclose(deq(INPUTS, training=False), 2 * INPUTS, atol=2e-3)
    with pytest.raises(ValueError, match="sample masks in `inject`"):
        deq(INPUTS, training=True)


def test_masks_sampled_in_inject_hold_for_one_solve():
    class MaskedCell(TanhCell):
        def __init__(self, units, **kwargs):
            super().__init__(units, **kwargs)
            self.seeds = keras.random.SeedGenerator(3)

        def inject(self, inputs, training=False):
            mask = ops.ones((ops.shape(inputs)[0], self.units))
            if training:
                mask = keras.random.dropout(mask, 0.5, seed=self.seeds)
            return {"u": super().inject(inputs), "mask": mask}

        def initial_state(self, injection):
            return ops.zeros_like(injection["u"])

        def call(self, state, injection):
            return injection["mask"] * super().call(state, injection["u"])

    deq = layers.DEQ(MaskedCell(5), solver={"class_name": "anderson", "max_iter": 40})
    one, two = (deq.solve(INPUTS, training=True) for _ in range(2))
    for solution in (one, two):  # A mask that changed within a solve never converges.
        np.testing.assert_array_equal(solution.status, 0)
    assert np.any(np.not_equal(one.value == 0, two.value == 0))
    still = [deq(INPUTS, training=False) for _ in range(2)]
    np.testing.assert_array_equal(*still)


def test_integer_inputs_reach_inject():
    class TokenCell(TanhCell):
        def __init__(self, units):
            super().__init__(units)
            self.embedding = keras.layers.Embedding(11, 4)

        def inject(self, inputs, training=False):
            return self.projection(ops.mean(self.embedding(inputs), axis=1))

    class OneHotCell(TanhCell):
        def inject(self, inputs, training=False):
            return self.projection(ops.mean(ops.one_hot(inputs, 11), axis=1))

    tokens = np.array([[1, 2, 3], [4, 5, 10]])
    for cls in (TokenCell, OneHotCell):
        deq = layers.DEQ(cls(5), gradient="implicit")
        assert deq(tokens).shape == (2, 5)
        symbolic = layers.DEQ(cls(5))(keras.Input((3,), dtype="int32"))
        assert symbolic.shape == (None, 5)


def test_a_cell_without_return_is_refused():
    cell = FunctionCell(lambda state, injection: None)
    with pytest.raises(ValueError, match="structure of the state.*Received: None"):
        layers.DEQ(cell)(INPUTS)


@pytest.mark.parametrize("leaf", [None, "relu", 0.5])
def test_an_injection_of_other_things_than_tensors_is_refused(leaf):
    class OptionalCell(layers.EquilibriumCell):
        def inject(self, inputs, training=False):
            return {"x": inputs, "option": leaf}

        def initial_state(self, injection):
            return ops.zeros_like(injection["x"])

        def call(self, state, injection):
            return ops.tanh(0.5 * state + injection["x"])

    with pytest.raises(ValueError, match=r"OptionalCell.inject.*\['option'\]="):
        layers.DEQ(OptionalCell())(INPUTS)


def test_a_sublayer_of_another_dtype_is_named():
    class MixedCell(layers.EquilibriumCell):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.recurrent = keras.layers.Dense(3)

        def call(self, state, injection):
            return ops.tanh(self.recurrent(state) + injection)

    with pytest.raises(ValueError, match="MixedCell.call.*dtype=self.dtype_policy"):
        layers.DEQ(MixedCell(dtype="float64"))(INPUTS)


@keras.saving.register_keras_serializable("test_cell")
class EdgeCell(layers.EquilibriumCell):
    """A graph network: indices must be integers."""

    def inject(self, inputs, training=False):
        return inputs

    def initial_state(self, injection):
        return ops.zeros_like(injection["nodes"])

    def call(self, state, injection):
        senders = tf.gather(state, injection["senders"], axis=1, batch_dims=1)
        return 0.5 * ops.sin(senders) + injection["nodes"]


def test_integer_inputs_are_indices(tmp_path):
    nodes = np.random.RandomState(0).normal(size=(2, 4, 3)).astype("float32")
    senders = np.array([[1, 2, 3, 0], [2, 2, 0, 1]])
    solver = solvers.FixedPointIteration(60, tol=1e-6)
    value = layers.DEQ(EdgeCell(), solver)({"nodes": nodes, "senders": senders})
    expected = np.zeros_like(nodes)
    for _ in range(60):
        expected = 0.5 * np.sin(expected[[[0], [1]], senders]) + nodes
    np.testing.assert_allclose(value, expected, atol=1e-5)

    inputs = {
        "nodes": keras.Input((None, 3), name="nodes"),
        "senders": keras.Input((None,), dtype="int32", name="senders"),
    }
    model = keras.Model(inputs, layers.DEQ(EdgeCell(), solver)(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, loaded, keras.models.clone_model(loaded)):
        value = one({"nodes": nodes, "senders": senders})
        np.testing.assert_allclose(value, expected, atol=1e-5)


class OwnWeightsCell(layers.EquilibriumCell):
    """Weights of its own, drawn when it is built: that is no draw of `call`."""

    def build(self, state_shape, injection_shape=None):
        self.kernel = self.add_weight(
            shape=(state_shape[-1],) * 2,
            initializer=keras.initializers.RandomNormal(stddev=0.1),
        )

    def call(self, state, injection):
        return ops.tanh(ops.matmul(state, self.kernel) + injection)


@pytest.mark.parametrize("place", ["eager", "functional", "sequential", "graph"])
def test_a_cell_may_build_weights_of_its_own(place):
    deq = layers.DEQ(OwnWeightsCell(), gradient="implicit")
    if place == "eager":
        deq(INPUTS)
    elif place == "functional":
        deq(keras.Input((3,)))
    elif place == "sequential":
        model = keras.Sequential([deq])
        model.compile(loss="mse")
        model.predict(INPUTS, verbose=0)
    else:
        tf.function(deq)(ops.array(INPUTS))
    assert deq.cell.kernel.shape == (3, 3)
    assert np.std(deq.cell.kernel) > 0


@pytest.mark.parametrize(
    "cell",
    [
        keras.layers.Dense(4),
        keras.layers.Dropout(0.5),
        keras.Sequential([keras.layers.Dense(4)]),
    ],
    ids=["Dense", "Dropout", "Sequential"],
)
def test_a_layer_of_one_input_is_no_cell(cell):
    with pytest.raises(ValueError, match=r"called as `cell\(state, injection\)`"):
        layers.DEQ(cell)


def test_double_precision_with_a_regularizer():
    """Keras adds up losses in its own precision."""
    cell = layers.DenseCell(3, dtype="float64")
    regularizer = {"class_name": "JacobianRegularizer", "probability": 0.5}
    deq = layers.DEQ(cell, regularizer=regularizer, dtype="float64")
    model = keras.Sequential([deq, keras.layers.Dense(1, dtype="float64")])
    model.compile("sgd", "mse", run_eagerly=True)
    history = model.fit(INPUTS.astype("float64"), INPUTS[:, :1], verbose=0).history
    assert np.isfinite(history["loss"][0])
    assert model(INPUTS).dtype == "float64"


@pytest.mark.parametrize("regularizer", ["contraction", "jacobian"])
def test_a_batch_of_no_samples_costs_nothing(regularizer):
    """As a replica may have it at the end of an epoch."""
    deq = layers.DEQ(layers.DenseCell(3), regularizer=regularizer)
    deq.build((None, 3))
    with tf.GradientTape() as tape:
        outputs = deq(INPUTS[:0], training=True)
        loss = tf.add_n(deq.losses)
    assert outputs.shape == (0, 3)
    assert float(loss) == 0.0
    for slope in tape.gradient(loss, [w.value for w in deq.trainable_weights]):
        assert slope is None or np.all(slope == 0)
