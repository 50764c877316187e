"""The private parts of TensorFlow and Keras behave as this package needs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.core import internals


@pytest.mark.parametrize("jit_compile", [False, True])
def test_xla_is_seen_in_functions_branches_and_loops(jit_compile):
    seen = []

    def note(x):
        seen.append(internals.is_compiled_by_xla())
        return x

    @tf.function(jit_compile=jit_compile, autograph=False)
    def trace(x):
        x = tf.function(note)(note(x))
        x = tf.cond(x > 0, lambda: note(x), lambda: x)
        return tf.while_loop(lambda y: y < 2.0, lambda y: (note(y) + 1,), (x,))[0]

    assert float(trace(tf.constant(1.0))) == 2.0
    assert seen == [jit_compile] * 4
    assert not internals.is_compiled_by_xla()


def test_an_outer_graph_is_differentiated():
    @tf.function(autograph=False)
    def slope(x):
        y, graph = x**3, tf.compat.v1.get_default_graph()
        step = lambda i, _: (i + 1, internals.differentiate([y], [x], [y], graph)[0])  # noqa: E731
        return tf.while_loop(lambda i, _: i < 1, step, (0, x))[1]

    assert float(slope(tf.constant(2.0))) == 8.0 * 12.0


@pytest.mark.parametrize("regime", ["eager", "graph"], indirect=True)
def test_a_gradient_belongs_to_its_operation(regime):
    def tripled(x):
        return internals.record_gradient([x], lambda cotangent: [3.0 * cotangent])[0]

    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tripled(x)
        inside = tf.function(tripled)  # Differentiated as a whole.
        with tf.GradientTape() as outer:
            outer.watch(x)
            z = inside(x)
        return tape.gradient(y, x), outer.gradient(z, x)

    np.testing.assert_array_equal(regime(slopes)(tf.constant(1.0)), [3.0, 3.0])


def test_variables_and_accumulators_are_seen():
    read, other = tf.Variable(1.0), tf.Variable(2.0)
    with internals.watch_variables() as watcher:
        tensor = read + 1.0
    assert [one is read for one in watcher.watched_variables()] == [True]
    assert not internals.has_forward_accumulator([tensor])
    with tf.autodiff.ForwardAccumulator(tensor, tf.constant(1.0)):
        assert internals.has_forward_accumulator([tensor])
        assert not internals.has_forward_accumulator([tf.constant(1.0), other + 1.0])


def test_operations_are_changed():
    @tf.function(autograph=False)
    def compute(x):
        y = tf.raw_ops.Add(x=x, y=x)
        internals.replace_input(y.op, 1, tf.constant(5.0))
        z = tf.raw_ops.Square(x=x)
        internals.set_gradient(z.op, lambda operation, cotangent: 7.0 * cotangent)
        return y, tf.gradients(z, x)[0]

    np.testing.assert_array_equal(compute(tf.constant(1.0)), [6.0, 7.0])


def test_the_own_value_of_a_variable_is_not_cast():
    layer = keras.layers.Dense(2, dtype="mixed_float16")
    layer.build((None, 3))
    assert internals.own_value(layer.kernel).dtype == tf.float32
    with keras.src.backend.AutocastScope("float16"):
        assert layer.kernel.value.dtype == tf.float16
        assert internals.own_value(layer.kernel).dtype == tf.float32
