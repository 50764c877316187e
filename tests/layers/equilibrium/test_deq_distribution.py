"""Two replicas train as one device does."""

import json

import numpy as np
import pytest

from tests import harness

pytestmark = pytest.mark.slow

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
# The second replica's half of each batch is harder: near zero, tanh damps nothing.
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
        solver=solvers.Anderson(max_iter=40, tol=1e-4),
        gradient="implicit",
        regularizer=FixedProbe(0.5),
        name="deq",
    )
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(8)
    history = model.fit(data, validation_data=data, epochs=3, verbose=0).history
    weights = [w.numpy().tolist() for w in model.trainable_weights]
    predicted = {}
    for budget in (2, 40):
        with layers.SolveScope(model, max_iter=budget, tol=0.0):
            predicted[budget] = model.predict(inputs, batch_size=8, verbose=0).tolist()
    return deq, {"history": history, "weights": weights, "predicted": predicted}


deq, single = train()
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    mirrored_deq, mirrored = train()


halves = [inputs[:4], inputs[4:8]]
single["evaluations"] = [int(deq.solve(half).batch_evaluations) for half in halves]
shares = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant(halves[context.replica_id_in_sync_group])
)
counts = tf.function(strategy.run)(
    lambda share: mirrored_deq.solve(share).batch_evaluations, args=(shares,)
)
mirrored["evaluations"] = [int(n) for n in strategy.experimental_local_results(counts)]
print("RESULT" + json.dumps({"single": single, "mirrored": mirrored}))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distribution")
    printed = harness.run_in_clean_process(PROGRAM, folder=folder, has_library=True)
    return json.loads(printed.split("RESULT")[1])


def test_two_replicas_equal_one_device(results):
    """Gradients: the weights after six steps."""
    weights = [results[name]["weights"] for name in ("single", "mirrored")]
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)


def test_losses_and_statistics_equal_those_of_one_device(results):
    single, mirrored = (results[name]["history"] for name in ("single", "mirrored"))
    assert set(single) == set(mirrored)
    assert {"deq_penalty", "val_deq_residual"} <= set(single)
    for name, values in single.items():
        # The estimated error of a gradient is a difference of almost equal numbers.
        limit = 1e-4 if name.endswith("gradient_error") else 1e-5
        np.testing.assert_allclose(mirrored[name], values, limit, limit, err_msg=name)


def test_each_replica_runs_the_loop_that_its_samples_need(results):
    first, second = results["mirrored"]["evaluations"]
    assert [first, second] == results["single"]["evaluations"]
    assert first != second
    assert max(first, second) < 40


def test_a_scope_sets_the_budget_of_each_replica(results):
    single, mirrored = (results[name]["predicted"] for name in ("single", "mirrored"))
    for budget in ("2", "40"):
        np.testing.assert_allclose(mirrored[budget], single[budget], atol=1e-4)
    assert np.abs(np.subtract(single["2"], single["40"])).max() > 1e-2
