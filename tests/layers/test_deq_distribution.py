"""Two replicas train as one device does."""

import json

import numpy as np
import pytest

from tests import harness

# Logical devices must exist before TensorFlow starts, hence a process of its own.
PROGRAM = """
import json
import sys

import keras
import numpy as np
import tensorflow as tf

from deq_keras import layers, regularizers, solvers
from tests.layers.cells import TanhCell

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
random = np.random.RandomState(0)
inputs = random.normal(size=(16, 4)).astype("float32")
# The second replica's half of each batch is easy, the first one's is hard.
inputs[4:8] *= 1e-3
inputs[12:16] *= 1e-3
targets = random.normal(size=(16, 1)).astype("float32")


class FixedProbe(regularizers.JacobianRegularizer):
    # The same probe for every sample, so that replicas can be compared.
    def probe(self, value, seed):
        row = np.linspace(-1, 1, value.shape[-1], dtype="float32")
        return tf.zeros_like(value) + row


def train():
    keras.utils.set_random_seed(0)
    deq = layers.DEQ(
        TanhCell(5, scale=0.8),
        solver=solvers.Anderson(max_iter=30, tol=1e-5),
        gradient="implicit",
        jacobian_regularizer=FixedProbe(0.5),
        name="deq",
    )
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(8)
    history = model.fit(data, validation_data=data, epochs=3, verbose=0).history
    return history, [w.numpy().tolist() for w in model.trainable_weights]


single = train()
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    mirrored = train()
print("RESULT" + json.dumps({"single": single, "mirrored": mirrored}))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distribution")
    printed = harness.run_in_clean_process(PROGRAM, folder=folder, has_library=True)
    return json.loads(printed.split("RESULT")[1])


def test_two_replicas_equal_one_device(results):
    """Gradients: the weights after six steps."""
    for one, two in zip(results["single"][1], results["mirrored"][1], strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)


def test_losses_and_statistics_equal_those_of_one_device(results):
    single, mirrored = results["single"][0], results["mirrored"][0]
    assert set(single) == set(mirrored)
    assert {"deq_jacobian", "deq_adjoint_residual", "val_deq_residual"} <= set(single)
    for name, values in single.items():
        np.testing.assert_allclose(
            mirrored[name], values, rtol=1e-5, atol=1e-5, err_msg=name
        )


def test_replicas_needed_different_numbers_of_evaluations(results):
    """So neither waited for, nor ran the loop of, the other."""
    evaluations = results["single"][0]["deq_evaluations"]
    assert all(2 < value < 30 for value in evaluations)
