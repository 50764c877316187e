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
    dense = deq_keras.layers.DenseCell
    names = (
        "truncated",
        "implicit",
        "neumann",
        "phantom",
        "reversible",
        "unrolled",
    )
    for gradient in names:
        yield (
            gradient,
            lambda gradient=gradient: deq_keras.layers.DEQ(dense(8), gradient=gradient),
        )
    remat = deq_keras.gradients.TruncatedGradient(3, 0, remat=True)
    yield "remat", lambda: deq_keras.layers.DEQ(dense(8), gradient=remat)
    checkpointed = deq_keras.gradients.UnrolledGradient(checkpoints=5)
    yield (
        "checkpoints",
        lambda: deq_keras.layers.DEQ(dense(8), gradient=checkpointed),
    )
    yield "penalty", lambda: deq_keras.layers.DEQ(dense(8), regularizer="jacobian")
    yield "group_norm", lambda: deq_keras.layers.DEQ(GroupNormalizedCell())
    monotone = deq_keras.layers.MonotoneDenseCell
    yield "splitting", lambda: deq_keras.layers.DEQ(monotone(8))


def _fitted(make_layer):
    """Returns weak references to a fitted layer and to its cell."""
    layer = make_layer()
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile("sgd", "mse")
    x = np.ones((4, 8), "float32")
    model.fit(x, x[:, :1], verbose=0)
    return weakref.ref(layer), weakref.ref(layer.cell)


# The other gradients use every custom gradient that these use.
SLOW = ("neumann", "phantom", "unrolled")


@pytest.mark.parametrize(
    "make_layer",
    [
        pytest.param(make, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, make in _layers()
    ],
)
def test_a_fitted_layer_is_freed(make_layer):
    references = _fitted(make_layer)
    keras.backend.clear_session()
    gc.collect()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


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
