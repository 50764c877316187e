"""A deleted model frees its equilibrium layers."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.core.custom_gradient import custom_gradient


class GroupNormalizedCell(deq_keras.layers.EquilibriumCell):
    def build(self, state_shape, injection_shape):
        self.norm = deq_keras.layers.GroupNormalization(groups=2)
        self.norm.build(state_shape)

    def call(self, state, injection):
        return 0.5 * self.norm(state + injection)


def _layers():
    """Returns layers that together use every custom gradient, by name."""
    deq, gradients = deq_keras.layers.DEQ, deq_keras.gradients
    cells = {
        "implicit": {"gradient": "implicit"},
        "reversible": {"gradient": "reversible"},
        "remat": {"gradient": gradients.TruncatedGradient(3, 0, remat=True)},
        "checkpoints": {"gradient": gradients.UnrolledGradient(checkpoints=5)},
        "penalty": {"regularizer": "jacobian"},
    }
    layers = {
        name: deq(deq_keras.layers.DenseCell(8), name=name, **arguments)
        for name, arguments in cells.items()
    }
    layers["group_norm"] = deq(GroupNormalizedCell(), name="group_norm")
    layers["splitting"] = deq(deq_keras.layers.MonotoneDenseCell(8), name="splitting")
    return layers


def _fitted():
    """Returns weak references to fitted layers and to their cells, by name."""
    layers = _layers()
    inputs = keras.Input((8,))
    states = keras.layers.Add()([layer(inputs) for layer in layers.values()])
    model = keras.Model(inputs, keras.layers.Dense(1)(states))
    model.compile("sgd", "mse")
    x = np.ones((4, 8), "float32")
    model.fit(x, x[:, :1], verbose=0)
    return {
        name: (weakref.ref(layer), weakref.ref(layer.cell))
        for name, layer in layers.items()
    }


@pytest.mark.slow
def test_fitted_layers_are_freed():
    references = _fitted()
    keras.backend.clear_session()
    gc.collect()
    gc.collect()
    for name, (layer, cell) in references.items():
        assert layer() is None and cell() is None, name


def test_a_graph_with_a_custom_gradient_is_freed():
    def double(x):
        square = x * x
        return custom_gradient(lambda x: (x + x, lambda dy: [dy * square]))(x)

    def trace():
        function = tf.function(double, autograph=False)
        spec = tf.TensorSpec([], tf.float32)
        return weakref.ref(function.get_concrete_function(spec).graph)

    graph = trace()
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize("inside", [True, False], ids=["tape_inside", "tape_outside"])
@pytest.mark.parametrize("jit", [True, False])
def test_a_custom_gradient_is_that_of_the_function(inside, jit):
    cube = custom_gradient(lambda x: (x**3, lambda dy: [10.0 * dy * x]))

    def derivative(x, function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    if inside:
        outer = tf.function(lambda x: derivative(x, cube), jit_compile=jit)
        gradient = outer(tf.constant(2.0))
    else:
        gradient = derivative(tf.constant(2.0), tf.function(cube, jit_compile=jit))
    assert float(gradient) == 20.0


def test_a_custom_gradient_refuses_to_lose_that_of_a_variable():
    variable = tf.Variable(2.0)
    scale = custom_gradient(lambda x: (x * variable, lambda dy: [dy]))
    function = tf.function(scale, autograph=False)
    with pytest.raises(TypeError, match="must get trainable variables as inputs"):
        function(tf.constant(1.0))
