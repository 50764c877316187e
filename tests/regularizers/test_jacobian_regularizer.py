"""The Jacobian regularizer against the explicit Jacobian and the reference."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import regularizers
from deq_keras.core.linearization import linearize
from deq_keras.testing.problems import ZOO, dense_jacobians
from tests.golden.arrays import load, mlp, weights

SEED = tf.constant([3, 4])


class StoredProbes(regularizers.JacobianRegularizer):
    """Takes its probes from an array instead of drawing them."""

    def __init__(self, probes):
        super().__init__(num_probes=len(probes))
        self.remaining = list(probes)

    def probe(self, value, seed):
        return tf.constant(self.remaining.pop(0))


def _golden():
    arrays = load("jacobian")
    return arrays, weights("jacobian", "jl_mlp"), tf.constant(arrays["jl_mlp/z0"])


@pytest.mark.parametrize("num_probes", [1, 3])
def test_equals_the_reference_for_its_probes(num_probes):
    arrays, w, point = _golden()
    regularizer = StoredProbes(arrays["jl_mlp/v"][:num_probes])
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = regularizer(linearize(mlp(w), point), SEED)
    prefix = f"jl_mlp/vecs{num_probes}"
    np.testing.assert_allclose(loss, arrays[f"{prefix}/loss"], rtol=1e-12)
    for name, gradient in tape.gradient(loss, w).items():
        expected = arrays[f"{prefix}/grad/{name}"]
        if gradient is None:  # The injection x does not enter the Jacobian.
            assert not np.any(expected), name
        else:
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-12)


def test_point_is_a_constant():
    _, w, point = _golden()
    with tf.GradientTape() as tape:
        tape.watch(point)
        loss = regularizers.JacobianRegularizer()(linearize(mlp(w), point), SEED)
    assert tape.gradient(loss, point) is None


def test_expectation_is_the_frobenius_norm():
    arrays, w, point = _golden()
    num_probes = 4

    @tf.function(autograph=False)
    def estimate(seed):
        regularizer = regularizers.JacobianRegularizer(num_probes=num_probes)
        return regularizer(linearize(mlp(w), point), seed)

    estimates = [estimate(tf.constant([0, i])).numpy() for i in range(120)]
    expected = arrays["jl_mlp/exact_frob2_over_numel"]
    # 480 probes; the standard error comes from the estimates themselves.
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - expected) < 4 * error
    assert error < 0.05 * expected
    assert len(set(estimates)) == 120


def test_weight_scales_and_nests_are_one_state():
    problem = ZOO["nest"]()
    linearization = linearize(problem.function, problem.initial_state)
    single = regularizers.JacobianRegularizer(1.0)(linearization, SEED)
    weighted = regularizers.JacobianRegularizer(2.5)(linearization, SEED)
    np.testing.assert_allclose(weighted, 2.5 * single, rtol=1e-12)

    def flat_function(matrix):
        state = {
            "map": tf.reshape(matrix[:, :12], [-1, 2, 2, 3]),
            "rest": (matrix[:, 12:16], tf.reshape(matrix[:, 16:], [-1, 2, 1])),
        }
        new = problem.function(state)
        leaves = [new["map"], *new["rest"]]
        return tf.concat([tf.reshape(leaf, [len(leaf), -1]) for leaf in leaves], 1)

    jacobians = dense_jacobians(flat_function, tf.zeros((3, 18), tf.float64))
    expected = np.sum(jacobians**2) / (3 * 18)
    many = regularizers.JacobianRegularizer(num_probes=100)
    np.testing.assert_allclose(many(linearization, SEED), expected, rtol=0.2)


def test_probability_is_the_fraction_of_calls_with_a_penalty():
    @tf.function(autograph=False)
    def loss(seed):
        linearization = linearize(lambda z: tf.tanh(z), tf.zeros((1, 8)))
        regularizer = regularizers.JacobianRegularizer(probability=0.25)
        return regularizer(linearization, seed)

    draws = np.array([loss(tf.constant([5, i])).numpy() for i in range(200)])
    assert 0.15 < np.mean(draws > 0) < 0.35
    assert set(np.unique(draws[draws <= 0])) == {0.0}


def test_penalty_of_some_steps_has_its_gradient():
    """Also where the Jacobian has permutations, which XLA must know beforehand."""
    kernel = tf.Variable(tf.random.stateless_normal((3, 3), SEED))
    states = tf.random.stateless_normal((2, 3, 4), SEED)

    def mixed(z):
        swapped = tf.transpose(tf.repeat(z, 2, axis=2), (0, 2, 1))
        mixed = tf.transpose(tf.tanh(swapped @ kernel), (0, 2, 1))
        return tf.concat([mixed[:, :, :1], mixed[:, :, 1:4]], axis=2)

    @tf.function(jit_compile=True, reduce_retracing=True, autograph=False)
    def gradient(seed, probability):
        regularizer = regularizers.JacobianRegularizer(probability=probability)
        with tf.GradientTape() as tape:
            loss = regularizer(linearize(mixed, states), seed)
        return tape.gradient(loss, kernel), loss

    shares = []
    for index in range(12):
        seed = tf.constant([5, index])
        always, penalty = gradient(seed, 1.0)
        sometimes, loss = gradient(seed, 0.5)
        is_drawn = float(loss) > 0
        assert loss == (penalty if is_drawn else 0.0)
        np.testing.assert_allclose(sometimes, is_drawn * always.numpy(), rtol=1e-5)
        shares.append(is_drawn)
    assert {True, False} == set(shares)


def test_probes_of_all_leaves_are_independent():
    """The mean over probes gains nothing from one that repeats another's numbers."""
    drawn = []

    class Recording(regularizers.JacobianRegularizer):
        def probe(self, value, seed):
            probe = super().probe(value, seed)
            drawn.extend(leaf.numpy() for leaf in probe)
            return probe

    state = (tf.zeros((2, 5)), tf.zeros((2, 5)), tf.zeros((2, 5)))
    linearization = linearize(lambda s: tuple(0.5 * leaf for leaf in s), state)
    Recording(num_probes=3)(linearization, SEED)
    assert len(drawn) == 9
    assert len({leaf.tobytes() for leaf in drawn}) == 9
