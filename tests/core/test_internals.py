"""The private parts of TensorFlow and Keras behave as this package needs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.export import openvino
from tensorflow.python.eager import context

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


def test_updates_run_with_the_gradient_of_a_function():
    count = tf.Variable(0.0)

    def twice(x):
        def backward(cotangent):
            return internals.run_with([2 * cotangent], lambda: count.assign_add(1.0))

        return internals.record_gradient([x], backward)[0]

    x = tf.constant(1.0)
    for function in (twice, tf.function(twice)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        assert tape.gradient(y, x) == 2.0
    assert count == 2.0


def test_functions_run_as_they_were_traced():
    def optimizer_is_off():
        options = context.context().function_call_options.config_proto_serialized
        config = tf.compat.v1.ConfigProto.FromString(options)
        return config.graph_options.rewrite_options.disable_meta_optimizer

    with internals.as_traced():
        assert optimizer_is_off()
    assert not optimizer_is_off()


def test_variables_and_accumulators_are_seen():
    read, other = tf.Variable(1.0), tf.Variable(2.0)
    with internals.watch_variables() as watcher:
        tensor = read + 1.0
    assert [one is read for one in watcher.watched_variables()] == [True]
    assert not internals.has_forward_accumulator([tensor])
    with tf.autodiff.ForwardAccumulator(tensor, tf.constant(1.0)):
        assert internals.has_forward_accumulator([tensor])
        assert not internals.has_forward_accumulator([tf.constant(1.0), other + 1.0])


def test_a_tape_is_seen():
    assert not internals.may_record_gradients()
    with tf.GradientTape() as tape:
        assert internals.may_record_gradients()
        with tape.stop_recording():
            assert not internals.may_record_gradients()


def test_graphs_capture_tensors():
    outer, graph = tf.constant(1.0), internals.function_graph("name")
    with graph.as_default():
        inner = outer + 1.0
    assert inner.graph is graph
    assert [tensor is outer for tensor, _ in graph.captures] == [True]


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


def test_stateless_scopes_are_found_and_left():
    variable = keras.Variable(1.0)
    assert internals.stateless_scope() is None
    with keras.StatelessScope() as outer:
        assert internals.stateless_scope() is outer
        with internals.no_stateless_scope():
            assert internals.stateless_scope() is None
            variable.assign(2.0)
        assert internals.stateless_scope() is outer
    assert internals.stateless_scope() is None
    assert float(variable) == 2.0


class Inner(keras.layers.Layer):
    """Calls a function, and adds a loss."""

    def __init__(self, function=lambda: None):
        super().__init__()
        self.function = function
        self.supports_masking = True

    def call(self, inputs):
        self.function()
        self.add_loss(keras.ops.sum(inputs))
        return inputs


def test_sublayers_losses_and_the_outermost_layer_are_found():
    entries = []
    inner = Inner(lambda: entries.append(internals.entry_layer(inner)))
    model = keras.Sequential([keras.Input((3,)), keras.Sequential([inner])])
    assert internals.flatten_layers(model)[0] is model
    assert inner in internals.flatten_layers(model, include_self=False)
    model(np.ones((2, 3)))
    assert entries[-1] is model
    assert len(internals.own_losses(inner)) == 1
    internals.own_losses(inner).clear()
    assert not model.losses


def test_specs_are_computed_without_a_layer():
    spec = internals.compute_spec(
        lambda x: keras.ops.cast(x[:, :2], "int32"), keras.KerasTensor((None, 3))
    )
    assert (spec.shape, spec.dtype) == ((None, 2), "int32")


def test_masks_are_attached_to_tensors():
    x = keras.layers.Masking()(np.ones((2, 4, 3), "float32"))
    assert internals.keras_masks(x).shape == (2, 4)
    y = tf.identity(x)
    assert internals.keras_masks(y) is None
    internals.set_keras_mask(y, tf.constant([[True, False, True, True]] * 2))
    outputs = keras.layers.GlobalAveragePooling1D()(y * [[[1.0], [9.0], [1.0], [1.0]]])
    assert internals.keras_masks(Inner()(y)) is internals.keras_masks(y)
    np.testing.assert_array_equal(outputs, 3 * np.ones((2, 3)))


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


@pytest.mark.parametrize("name", ["onnx", "openvino", "litert"])
def test_a_format_of_keras_export_is_seen(name, tmp_path):
    formats = []

    def stop():
        formats.append(internals.keras_export_format())
        if formats[-1] is not None:
            raise NotImplementedError

    model = keras.Sequential([keras.Input((3,)), Inner(stop)])
    model(np.ones((2, 3)))
    with pytest.raises(NotImplementedError):
        if name == "openvino":  # A package that the tests do without.
            openvino.get_concrete_fn(model, [keras.InputSpec("float32", (None, 3))])
        path = tmp_path / ("model.tflite" if name == "litert" else "model.onnx")
        model.export(path, format=name, verbose=False)
    assert formats == [None] * (len(formats) - 1) + [name]


def test_constants_replace_variables_and_loops_stay():
    variable = tf.Variable(3.0)

    @tf.function(autograph=False)
    def compute(x):
        return tf.while_loop(lambda y: y < 9.0, lambda y: (y * variable,), (x,))[0]

    spec = tf.TensorSpec((), tf.float32)
    frozen = internals.with_constants(compute.get_concrete_function(spec))
    variable.assign(5.0)
    assert float(frozen(tf.constant(2.0))[0]) == 18.0
    assert "While" in {node.op for node in frozen.graph.as_graph_def().node}


def test_functions_of_the_optimizer_are_forgotten():
    known, name = context.context(), "while_body_function_3"
    traced = tf.function(lambda: tf.constant(1.0)).get_concrete_function()
    definition = traced.function_def
    definition.signature.name = name
    for _ in range(2):
        known.add_function_def(definition)
    assert known.has_function(name)
    internals.forget_optimized_functions()
    assert not known.has_function(name)


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
