"""How a cell is built, and the properties that the layer checks then."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, testing
from tests.layers.cells import FunctionCell, TanhCell

INPUTS = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)
MATRIX = np.full((4, 4), 0.1, "float32")


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
        self.known = Known()

    def call(self, inputs):
        return self.known(inputs)


class OfSublayer(layers.EquilibriumCell):
    def __init__(self, sublayer):
        super().__init__()
        self.sublayer = sublayer

    def call(self, state, injection):
        return self.sublayer(state) + injection


class Own(layers.EquilibriumCell):
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
MAKE = {
    "own": Own,
    "sublayer": lambda: OfSublayer(Known()),
    "composite": lambda: OfSublayer(Composite()),
    "sequential": lambda: layers.cell_from(keras.Sequential([Composite()])),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_values_assigned_in_build_are_kept(make, place):
    deq = layers.DEQ(make())
    PLACES[place](deq)
    (weight,) = (one for one in deq.cell.weights if one.shape == (4, 4))
    np.testing.assert_array_equal(weight, MATRIX)
    deq(INPUTS)  # No tensor of the trace is left.


def test_a_value_assigned_outside_of_build_is_refused():
    class Late(layers.EquilibriumCell):
        matrix = None

        def inject(self, inputs):
            if self.matrix is None:
                self.matrix = self.add_weight(shape=(4, 4), name="late")
                self.matrix.assign(MATRIX)
            return inputs

        def call(self, state, injection):
            return ops.matmul(state, self.matrix) + injection

    with pytest.raises(ValueError, match="Received: weight=.*late"):
        layers.DEQ(Late())(INPUTS)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["eager", "functional", "graph"])
def test_an_initializer_that_raises_leaves_nothing_behind(place, error):
    def fail(shape, dtype=None):
        raise error("my initializer")

    failing = keras.layers.Dense(4, kernel_initializer=fail)
    for cell in (
        layers.DenseCell(4, kernel_initializer=fail),
        OfSublayer(keras.Sequential([failing])),
    ):
        with pytest.raises(error, match="my initializer"):
            PLACES[place](layers.DEQ(cell))
        assert layers.DEQ(layers.DenseCell(4))(INPUTS).shape == (6, 4)


def test_functions_of_tensorflow_can_be_a_cell():
    class Decorated(TanhCell):
        @tf.function
        def inject(self, inputs, training=False):
            return super().inject(inputs)

        @tf.function
        def call(self, state, injection):
            return super().call(state, injection)

    plain, decorated = (layers.DEQ(cls(5), seed=1) for cls in (TanhCell, Decorated))
    gradients = []
    for deq in (plain, decorated):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deq(INPUTS, training=True) ** 2)
        gradients.append(tape.gradient(loss, [w.value for w in deq.trainable_weights]))
    for one, two in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


class PerRow(layers.EquilibriumCell):
    def inject(self, inputs):
        return inputs + np.arange(6, dtype="float32")[:, None]

    def call(self, state, injection):
        return 0.5 * ops.tanh(state) + injection


class Reshaping(layers.EquilibriumCell):
    def inject(self, inputs):
        return ops.reshape(inputs, (6, -1))

    def call(self, state, injection):
        return 0.5 * ops.tanh(state) + injection


@pytest.mark.parametrize("cls", [PerRow, Reshaping])
def test_a_cell_may_know_its_batch_size(cls):
    inputs = keras.Input(batch_shape=(6, 4))
    deq = layers.DEQ(cls())
    model = keras.Model(inputs, deq(inputs))
    expected = deq(INPUTS)
    assert deq.problem(INPUTS).knows_rows is False
    np.testing.assert_allclose(model.predict(INPUTS, batch_size=6), expected, atol=1e-5)


CHAIN = (np.eye(6, k=1) + np.eye(6, k=-1)).astype("float32")
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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("function", COUPLED.values(), ids=COUPLED)
def test_coupled_samples_are_refused(function, place):
    with pytest.raises(ValueError, match="independently.*Received: cell=FunctionCell"):
        PLACES[place](layers.DEQ(FunctionCell(function)))


UNCOUPLED = {
    "zero": lambda z, u: 0.0 * z + u,
    "nan": lambda z, u: 0.1 * ops.sqrt(z) + u,
    "softmax": lambda z, u: ops.softmax(z + u),
}


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("function", UNCOUPLED.values(), ids=UNCOUPLED)
def test_independent_samples_pass(function, dtype):
    assert layers.DEQ(FunctionCell(function, dtype=dtype))(INPUTS).shape == (6, 4)


def test_one_sample_may_use_its_batch_axis():
    deq = layers.DEQ(FunctionCell(COUPLED["norm_of_all"]))
    assert deq(INPUTS[:1]).shape == (1, 4)
    with pytest.raises(ValueError, match="independently"):
        deq(INPUTS)


class GraphCell(layers.EquilibriumCell):
    def initial_state(self, injection):
        return ops.zeros_like(injection["nodes"])

    def call(self, state, injection):
        neighbors = ops.matmul(injection["adjacency"], state)
        return 0.2 * neighbors + injection["nodes"]


@pytest.mark.parametrize("num_nodes", [6, None])
def test_one_graph_is_one_sample(num_nodes):
    graph = {"nodes": INPUTS, "adjacency": CHAIN}
    symbolic = {"nodes": keras.Input((4,)), "adjacency": keras.Input((num_nodes,))}
    for inputs in (graph, symbolic):
        with pytest.raises(ValueError, match="batch axis of 1"):
            layers.DEQ(GraphCell())(inputs)
    layers.DEQ(GraphCell())(
        {
            "nodes": keras.Input((num_nodes, 4)),
            "adjacency": keras.Input((num_nodes, num_nodes)),
        }
    )
    deq = layers.DEQ(GraphCell(), {"class_name": "broyden", "tol": 1e-6})
    value = deq({name: array[None] for name, array in graph.items()})
    expected = np.linalg.solve(np.eye(6) - 0.2 * CHAIN, INPUTS)
    np.testing.assert_allclose(value[0], expected, atol=1e-4)


IGNORING = {
    "call": lambda z, u: ops.tanh(z),
    "shape": lambda z, u: 0.5 * z + ops.zeros_like(u),
}


@pytest.mark.parametrize("place", ["eager", "functional"])
@pytest.mark.parametrize("function", IGNORING.values(), ids=IGNORING)
def test_a_cell_that_ignores_its_inputs_is_named(function, place):
    with pytest.warns(UserWarning, match="FunctionCell.call.*Received: injection="):
        PLACES[place](layers.DEQ(FunctionCell(function)))


def test_a_cell_may_use_its_inputs_in_part_or_to_start():
    zero = keras.layers.Dense(4, kernel_initializer="zeros")
    for function, start in (
        (lambda z, u: ops.tanh(z), lambda u: 2 * u),
        (lambda z, u: 0.5 * z + ops.cast(u > 0, z.dtype), None),
        (lambda z, u: 0.5 * z + zero(u), None),
    ):
        layers.DEQ(FunctionCell(function, start))(INPUTS)


def test_check_cell_names_unused_inputs():
    class Ignoring(TanhCell):
        def call(self, state, injection):
            return ops.tanh(self.recurrent(state))

    with pytest.warns(UserWarning), pytest.raises(AssertionError, match="the inputs"):
        testing.check_cell(lambda **dtype: Ignoring(4, **dtype), INPUTS)


def test_states_of_another_batch_size_are_named_in_a_graph():
    deq = layers.DEQ(TanhCell(5))
    deq(INPUTS)
    spec = [tf.TensorSpec([None, size]) for size in (4, 5)]
    solve = tf.function(lambda x, z: deq(x, initial_state=z), input_signature=spec)
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
        solve(tf.constant(INPUTS), tf.zeros((3, 5)))
    assert solve(tf.constant(INPUTS), tf.zeros((6, 5))).shape == (6, 5)


def test_the_state_of_another_width_names_inject():
    class Wide(layers.EquilibriumCell):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(8)

        def call(self, state, injection):
            return self.dense(state + injection)

    with pytest.raises(ValueError, match=r"project.*in `inject`"):
        layers.DEQ(Wide())(INPUTS)


@pytest.mark.parametrize("rate", ["dropout", "recurrent_dropout"])
def test_dropout_in_an_rnn_cell_is_refused(rate):
    cell = keras.layers.GRUCell(4, **{rate: 0.5})
    for layer in (cell, keras.layers.StackedRNNCells([cell])):
        with pytest.raises(ValueError, match=f"VariationalDropout.*{rate}=0.5"):
            layers.cell_from(layer)


def test_stacked_rnn_cells():
    cells = [keras.layers.GRUCell(4), keras.layers.LSTMCell(3)]
    deq = layers.DEQ(layers.cell_from(keras.layers.StackedRNNCells(cells)))
    assert [one.shape for one in keras.tree.flatten(deq(INPUTS))] == [
        (6, 4),
        (6, 3),
        (6, 3),
    ]
    with pytest.raises(ValueError, match=r"TimeDistributed.*\(6, 1, 4\)"):
        cell = keras.layers.StackedRNNCells([keras.layers.GRUCell(4)])
        layers.DEQ(layers.cell_from(cell))(INPUTS[:, None])
