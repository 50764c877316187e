"""Private parts of TensorFlow and Keras whose use no other test checks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from deq_keras.core import internals


def test_an_outer_graph_is_differentiated():
    @tf.function(autograph=False)
    def slope(x):
        y, graph = x**3, tf.compat.v1.get_default_graph()
        step = lambda i, _: (i + 1, internals.differentiate([y], [x], [y], graph)[0])  # noqa: E731
        return tf.while_loop(lambda i, _: i < 1, step, (0, x))[1]

    assert float(slope(tf.constant(2.0))) == 8.0 * 12.0


def test_functions_run_as_they_were_traced():
    def optimizer_is_off():
        options = context.context().function_call_options.config_proto_serialized
        config = tf.compat.v1.ConfigProto.FromString(options)
        return config.graph_options.rewrite_options.disable_meta_optimizer

    with internals.as_traced():
        assert optimizer_is_off()
    assert not optimizer_is_off()


def test_operations_are_changed():
    @tf.function(autograph=False)
    def compute(x):
        y = tf.raw_ops.Add(x=x, y=x)
        internals.replace_input(y.op, 1, tf.constant(5.0))
        z = tf.raw_ops.Square(x=x)
        internals.set_gradient(z.op, lambda operation, cotangent: 7.0 * cotangent)
        return y, tf.gradients(z, x)[0]

    np.testing.assert_array_equal(compute(tf.constant(1.0)), [6.0, 7.0])


class Inner(keras.layers.Layer):
    """Calls a function, and adds a loss."""

    def __init__(self, function=lambda: None):
        super().__init__()
        self.function = function

    def call(self, inputs):
        self.function()
        self.add_loss(keras.ops.sum(inputs))
        return inputs


def test_losses_of_a_layer_can_be_removed():
    inner = Inner()
    model = keras.Sequential([keras.Input((3,)), keras.Sequential([inner])])
    model(np.ones((2, 3)))
    assert len(internals.own_losses(inner)) == 1
    internals.own_losses(inner).clear()
    assert not model.losses


def _error(function):
    with pytest.raises((TypeError, ValueError, tf.errors.OpError)) as info:
        function()
    return info.value


def test_errors_of_shapes_and_dtypes_are_told_apart():
    def graph(function, *specs):
        specs = [tf.TensorSpec(*spec) for spec in specs]
        return _error(lambda: tf.function(function).get_concrete_function(*specs))

    dtype = graph(lambda x, y: x + y, ((2,), tf.float32), ((2,), tf.float16))
    sum_, product = (
        graph(function, ((2, 3), tf.float32), ((2, 4), tf.float32))
        for function in (tf.add, tf.matmul)
    )
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    shape = _error(lambda: layer(np.ones((2, 3))))
    other = _error(lambda: keras.layers.Dense(-1))
    assert internals.is_dtype_error(dtype) and not internals.is_dtype_error(shape)
    assert all(map(internals.is_shape_error, (sum_, product, shape)))
    assert not internals.is_shape_error(other)


def test_text_that_keras_adds_to_an_error_is_removed():
    def fail():
        raise ValueError("own words")

    error = _error(lambda: Inner(fail)(np.ones((2, 3))))
    assert str(error) != "own words" == internals.error_message(error)


@pytest.mark.parametrize(
    "scope, expected",
    [
        ({"mode": "full"}, "full"),
        ({"mode": "activations"}, None),
        ({"mode": "list_of_layers", "layer_names": ["dense"]}, "list_of_layers"),
        ({"mode": "list_of_layers", "layer_names": ["other"]}, None),
    ],
)
def test_scopes_that_recompute_are_seen(scope, expected):
    with keras.RematScope(**scope):
        layer = keras.layers.Dense(2, name="dense")
    assert internals.remat_mode(layer) == expected
    assert internals.remat_mode(keras.layers.Dense(2)) is None
