"""Every gradient passes the checks of plug-ins."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.testing import check_gradient
from tests.regimes import slow

GRADIENTS = {
    "implicit": gradients.ImplicitGradient,
    "gmres": lambda: gradients.ImplicitGradient(solvers.GMRES(40, 1e-12)),
    "unrolled": gradients.UnrolledGradient,
    "reversible": gradients.ReversibleGradient,
    "checkpoints": lambda: gradients.UnrolledGradient(checkpoints=6),
    "truncated": gradients.TruncatedGradient,
    "neumann": gradients.NeumannGradient,
    "phantom": gradients.PhantomGradient,
}
APPROXIMATE = ("truncated", "neumann", "phantom")


@pytest.mark.parametrize("regimes", [["graph"], slow(["eager", "xla"])], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_contract(name, regimes):
    check_gradient(GRADIENTS[name], name not in APPROXIMATE, regimes)


N = 4
RANDOM = np.random.default_rng(0)
WEIGHT = 0.5 * np.linalg.qr(RANDOM.normal(size=(N, N)))[0]
INPUTS, COTANGENT = RANDOM.normal(size=(2, 3, N))


class KernelKeptByInject(layers.EquilibriumCell):
    """z W + x, where `inject` computes W from a weight and keeps it on the cell."""

    def build(self, shape):
        self.w = self.add_weight((N, N), "zeros", name="w")

    def inject(self, inputs, training=False):
        if not self.built:
            self.build(inputs.shape)
        self.kernel = 1.0 * tf.convert_to_tensor(self.w)
        return {"inputs": inputs}

    def call(self, state, injection):
        kernel = injection.get("kernel", self.kernel)
        return state @ tf.math.real(kernel) + injection["inputs"]

    def initial_state(self, injection):
        return tf.zeros_like(injection["inputs"])


class ComplexInjection(KernelKeptByInject):
    """Returns W from `inject` as a complex tensor, with another tensor's real part."""

    def inject(self, inputs, training=False):
        injection = super().inject(inputs, training)
        return {**injection, "kernel": tf.complex(self.kernel, 2.0 * self.kernel)}


@pytest.mark.parametrize("cell", [KernelKeptByInject, ComplexInjection])
@pytest.mark.parametrize(
    "gradient, regime",
    [
        (gradients.ReversibleGradient(), "graph"),
        (gradients.TruncatedGradient(90, 0, max_steps=90, checkpoints=9), "graph"),
        (gradients.UnrolledGradient(checkpoints=90), "eager"),
        slow(gradients.ReversibleGradient(), "xla"),
        slow("implicit", "graph"),
    ],
    ids=str,
    indirect=["regime"],
)
def test_a_tensor_that_the_cell_keeps_has_its_gradient(cell, gradient, regime):
    """dL/dW = (x K)^T (c K^T) with K = (I - W)^-1, in float64."""
    solver = solvers.FixedPointIteration(90, None)
    deq = layers.DEQ(cell(dtype="float64"), solver, gradient, None)
    deq.build((None, N))
    deq.cell.w.assign(WEIGHT)

    @regime
    def slope(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deq(inputs, training=True) * COTANGENT)
        return tape.gradient(loss, deq.cell.w.value)

    inverse = np.linalg.inv(np.eye(N) - WEIGHT)
    right = (INPUTS @ inverse).T @ (COTANGENT @ inverse.T)
    np.testing.assert_allclose(slope(tf.constant(INPUTS)), right, rtol=1e-6, atol=1e-6)
