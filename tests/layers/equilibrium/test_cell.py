"""The contract of equilibrium cells, and how `DEQ` builds and checks them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, solvers
from tests.layers.cells import FunctionCell, TanhCell

INPUTS = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)
MATRIX = np.full((4, 4), 0.1, "float32")
CHAIN = (np.eye(6, k=1) + np.eye(6, k=-1)).astype("float32")


class Wrapper(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


PLACES = {
    "eager": lambda deq: deq(INPUTS),
    "functional": lambda deq: deq(keras.Input((4,))),
    "graph": lambda deq: tf.function(deq)(tf.constant(INPUTS)),
    "subclassed": lambda deq: Wrapper(deq).predict(INPUTS, verbose=0),
}


def test_any_layer_of_state_and_injection_is_a_cell():
    class Plain(keras.layers.Layer):
        def call(self, state, injection):
            return 0.5 * state + injection

    class Doubled(Plain):
        def inject(self, inputs):
            return 2 * inputs

    plain, doubled = (layers.DEQ(cell(), "broyden") for cell in (Plain, Doubled))
    np.testing.assert_allclose(plain(INPUTS), 2 * INPUTS, atol=1e-3)
    np.testing.assert_allclose(doubled(INPUTS), 4 * INPUTS, atol=1e-3)


def test_functional_model_of_two_inputs_is_a_cell():
    state, injection = keras.Input((4,)), keras.Input((4,))
    outputs = ops.tanh(keras.layers.Dense(4)(state) * 0.1 + injection)
    cell = keras.Model([state, injection], outputs)
    deq = layers.DEQ(cell, gradient="implicit")
    value = deq(INPUTS)
    np.testing.assert_allclose(value, cell([value, ops.array(INPUTS)]), atol=5e-3)
    assert len(deq.trainable_weights) == 2


class TestBuild:
    """Weights are created at the first call, wherever it is."""

    class Known(keras.layers.Layer):
        """A known matrix, and a constant that `build` computes."""

        def build(self, input_shape):
            self.matrix = self.add_weight(shape=(4, 4), name="matrix", trainable=False)
            self.matrix.assign(MATRIX)
            self.half = ops.ones((4,)) / 2

        def call(self, inputs):
            return ops.matmul(self.half * inputs, self.matrix)

    class Composite(keras.layers.Layer):
        """Keras builds it by inferring its shapes."""

        def __init__(self):
            super().__init__()
            self.known = TestBuild.Known()

        def call(self, inputs):
            return self.known(inputs)

    class OfSublayer(layers.EquilibriumCell):
        def __init__(self, sublayer):
            super().__init__()
            self.sublayer = sublayer

        def call(self, state, injection):
            return self.sublayer(state) + injection

    class BuiltByInject(layers.EquilibriumCell):
        def build(self, inputs_shape):
            self.dense = keras.layers.Dense(4, use_bias=False)
            self.dense.build(inputs_shape)
            self.dense.set_weights([MATRIX])

        def inject(self, inputs):
            if not self.built:
                self.build(inputs.shape)
            return inputs

        def call(self, state, injection):
            return self.dense(state) + injection

    @pytest.mark.parametrize(
        "kind, place",
        [
            ("inject", "functional"),
            ("sublayer", "graph"),
            ("composite", "subclassed"),
            ("sequential", "graph"),
        ],
    )
    def test_values_assigned_in_build_are_kept(self, kind, place):
        make = {
            "inject": self.BuiltByInject,
            "sublayer": lambda: self.OfSublayer(self.Known()),
            "composite": lambda: self.OfSublayer(self.Composite()),
            "sequential": lambda: layers.cell_from(
                keras.Sequential([self.Composite()])
            ),
        }[kind]
        deq = layers.DEQ(make())
        PLACES[place](deq)
        (weight,) = (one for one in deq.cell.weights if one.shape == (4, 4))
        np.testing.assert_array_equal(weight, MATRIX)
        deq(INPUTS)  # No tensor of the trace is left.

    @pytest.mark.parametrize(
        "place, error",
        [
            ("eager", ValueError),
            ("functional", ValueError),
            ("graph", KeyboardInterrupt),
        ],
    )
    def test_initializer_that_raises_leaves_nothing_behind(self, place, error):
        def fail(shape, dtype=None):
            raise error("my initializer")

        failing = keras.layers.Dense(4, kernel_initializer=fail)
        for cell in (
            layers.DenseCell(4, kernel_initializer=fail),
            self.OfSublayer(keras.Sequential([failing])),
        ):
            with pytest.raises(error, match="my initializer"):
                PLACES[place](layers.DEQ(cell))
            assert layers.DEQ(layers.DenseCell(4))(INPUTS).shape == (6, 4)


class TestSamples:
    """A sample must not depend on the others."""

    COUPLED = {
        "graph": lambda z, u: 0.4 * ops.matmul(CHAIN, z) + u,
        "batch_norm": lambda z, u: 0.5 * (z - ops.mean(z, axis=0)) + u,
        "attention": lambda z, u: (
            0.5 * ops.matmul(ops.softmax(ops.matmul(z, ops.transpose(z))), z) + u
        ),
        "cumulative": lambda z, u: 0.1 * ops.cumsum(z, axis=0) + u,
        "norm_of_all": lambda z, u: z / (1 + ops.norm(z)) + u,
        "injection": lambda z, u: 0.5 * z + ops.mean(u, axis=0) + u,
    }
    UNCOUPLED = {
        "zero": lambda z, u: 0.0 * z + u,
        "nan": lambda z, u: 0.1 * ops.sqrt(z) + u,
        "softmax": lambda z, u: ops.softmax(z + u),
    }

    @pytest.mark.parametrize(
        "kind, place",
        [
            *((kind, "eager") for kind in COUPLED),
            ("graph", "functional"),
            ("attention", "graph"),
            ("injection", "subclassed"),
        ],
    )
    def test_coupled_samples_raise(self, kind, place):
        deq = layers.DEQ(FunctionCell(self.COUPLED[kind]))
        with pytest.raises(ValueError, match="Received: cell=FunctionCell"):
            PLACES[place](deq)

    @pytest.mark.parametrize(
        "kind, dtype",
        [("zero", "float32"), ("nan", "float32"), ("softmax", "mixed_float16")],
    )
    def test_independent_samples_pass(self, kind, dtype):
        cell = FunctionCell(self.UNCOUPLED[kind], dtype=dtype)
        assert layers.DEQ(cell)(INPUTS).shape == (6, 4)

    @pytest.mark.parametrize("num_nodes", [6, None])
    def test_one_graph_is_one_sample(self, num_nodes):
        class GraphCell(layers.EquilibriumCell):
            def initial_state(self, injection):
                return ops.zeros_like(injection["nodes"])

            def call(self, state, injection):
                neighbors = ops.matmul(injection["adjacency"], state)
                return 0.2 * neighbors + injection["nodes"]

        graph = {"nodes": INPUTS, "adjacency": CHAIN}
        symbolic = {"nodes": keras.Input((4,)), "adjacency": keras.Input((num_nodes,))}
        for inputs in (graph, symbolic):
            with pytest.raises(ValueError, match=r"inputs\[None\]"):
                layers.DEQ(GraphCell())(inputs)
        shapes = {"nodes": (num_nodes, 4), "adjacency": (num_nodes, num_nodes)}
        layers.DEQ(GraphCell())({name: keras.Input(s) for name, s in shapes.items()})
        deq = layers.DEQ(GraphCell(), {"class_name": "broyden", "tol": 1e-6})
        value = deq({name: array[None] for name, array in graph.items()})
        expected = np.linalg.solve(np.eye(6) - 0.2 * CHAIN, INPUTS)
        np.testing.assert_allclose(value[0], expected, atol=1e-4)

    def test_cell_may_know_its_batch_size(self):
        class Reshaping(layers.EquilibriumCell):
            def inject(self, inputs):
                rows = np.arange(6, dtype="float32")[:, None]
                return ops.reshape(inputs, (6, -1)) + rows

            def call(self, state, injection):
                return 0.5 * ops.tanh(state) + injection

        inputs = keras.Input(batch_shape=(6, 4))
        deq = layers.DEQ(Reshaping())
        model = keras.Model(inputs, deq(inputs))
        outputs = model.predict(INPUTS, batch_size=6, verbose=0)
        np.testing.assert_allclose(outputs, deq(INPUTS), atol=1e-5)
        assert deq.problem(INPUTS).knows_rows is False


@pytest.mark.parametrize(
    "function, place",
    [
        (lambda z, u: ops.tanh(z), "eager"),
        (lambda z, u: 0.5 * z + ops.zeros_like(u), "functional"),
    ],
    ids=["call", "shape"],
)
def test_cell_that_ignores_its_inputs_warns(function, place):
    with pytest.warns(UserWarning, match="Received: injection="):
        PLACES[place](layers.DEQ(FunctionCell(function)))


def test_inputs_used_in_part_or_to_start_do_not_warn():
    zero = keras.layers.Dense(4, kernel_initializer="zeros")
    for function, start in (
        (lambda z, u: ops.tanh(z), lambda u: 2 * u),
        (lambda z, u: 0.5 * z + ops.cast(u > 0, z.dtype), None),
        (lambda z, u: 0.5 * z + zero(u), None),
    ):
        layers.DEQ(FunctionCell(function, start))(INPUTS)


class LayerCell(layers.EquilibriumCell):
    """Ends with a layer, which gets these arguments."""

    def __init__(self, layer, **arguments):
        super().__init__()
        self.layer = layer
        self.arguments = arguments

    def call(self, state, injection):
        return self.layer(0.5 * state + injection, **self.arguments)


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


IMPURE = {
    "dropout": lambda: LayerCell(keras.layers.Dropout(0.5), training=True),
    "batch_normalization": lambda: LayerCell(
        keras.layers.BatchNormalization(), training=True
    ),
    "stateless_noise": lambda: FunctionCell(
        lambda z, u: 0.1 * z + u + tf.random.normal(tf.shape(z))
    ),
    "loss": LossCell,
    "counter": CountingCell,
}


@pytest.mark.parametrize("place", ["eager", "functional"])
@pytest.mark.parametrize("make", IMPURE.values(), ids=IMPURE)
def test_impure_cell_raises(make, place):
    cell = make()
    with pytest.raises(ValueError, match=type(cell).__name__):
        PLACES[place](layers.DEQ(cell))


def test_dropout_in_training_alone_raises():
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


def test_inject_may_add_losses():
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

    deq = layers.DEQ(RegularizedInjection(), regularizer=None)
    activity = deq.cell.double.activity_regularizer(2 * INPUTS) / len(INPUTS)
    for inputs in (INPUTS, INPUTS, INPUTS[:2]):
        deq(inputs, training=True)
        assert len(deq.losses) == 2
    model = keras.Sequential([deq, keras.layers.Dense(1)])
    nothing = lambda targets, outputs: 0.0 * ops.mean(outputs, axis=-1)  # noqa: E731
    model.compile("sgd", nothing, run_eagerly=True)
    history = model.fit(INPUTS, INPUTS, verbose=0).history
    expected = np.mean(INPUTS**2) + activity
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)


@pytest.mark.parametrize(
    "make, regularizer, warns",
    [
        (keras.layers.LayerNormalization, "contraction", True),
        (lambda: keras.layers.GroupNormalization(2), "jacobian", True),
        (keras.layers.LayerNormalization, "residual", False),
        (layers.LayerNormalization, "contraction", False),
    ],
)
def test_norm_with_inexact_second_derivatives_warns(make, regularizer, warns):
    norm = make()
    cell = FunctionCell(lambda z, u: ops.tanh(norm(z) + u))
    cell.norm = norm
    layer = layers.DEQ(cell, "fixed_point_iteration", regularizer=regularizer)
    layer(INPUTS)
    if warns:
        with pytest.warns(UserWarning, match="Normalization"):
            layer(INPUTS, training=True)
    layer(INPUTS, training=True)  # Once: warnings are errors.


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
    graph = {"nodes": nodes, "senders": senders}
    solver = solvers.FixedPointIteration(60, tol=1e-6)
    value = layers.DEQ(EdgeCell(), solver)(graph).numpy()
    neighbors = value[[[0], [1]], senders]
    np.testing.assert_allclose(value, 0.5 * np.sin(neighbors) + nodes, atol=1e-5)

    inputs = {
        "nodes": keras.Input((None, 3), name="nodes"),
        "senders": keras.Input((None,), dtype="int32", name="senders"),
    }
    model = keras.Model(inputs, layers.DEQ(EdgeCell(), solver)(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, loaded, keras.models.clone_model(loaded)):
        np.testing.assert_allclose(one(graph), value, atol=1e-5)


@pytest.mark.parametrize("regularizer", ["contraction", "jacobian"])
def test_batch_of_no_samples_costs_nothing(regularizer):
    """As a replica may have it at the end of an epoch."""
    deq = layers.DEQ(layers.DenseCell(3), regularizer=regularizer)
    deq.build((None, 4))
    assert deq(INPUTS[:0], training=True).shape == (0, 3)
    assert float(tf.add_n(deq.losses)) == 0.0
