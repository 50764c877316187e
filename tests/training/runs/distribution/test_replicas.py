"""Two replicas train the smallest models like one device."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import harness
from training.runs import platform_repairs

# Logical devices must exist before TensorFlow starts, hence a process of its own.
PROGRAM = """
import json

import keras
import numpy as np
import tensorflow as tf

from training.config.fields import DistributionConfig
from training.runs import distribution

two = distribution.start(DistributionConfig(strategy="mirrored", logical_cpus=2))
random = np.random.default_rng(0)
# The second replica's half is elsewhere: statistics of a half are not the whole's.
x = random.normal(size=(8, 3)).astype("float32")
x[4:] = 3.0 * x[4:] + 2.0
y = random.normal(size=(8, 1)).astype("float32")


def data(count):
    return tf.data.Dataset.from_tensor_slices((x[:count], y[:count])).batch(8)


def train(devices, is_scaled=False):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    with devices.scope():
        layers = [keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        optimizer = keras.optimizers.Adam(0.1, global_clipnorm=0.1)
        if is_scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        devices.begin(model, optimizer)
        devices.continue_from(model)
        model.compile(optimizer, "mse", metrics=["mae"])
    history = model.fit(
        devices.batches(data(8)),
        validation_data=devices.batches(data(7)),
        validation_steps=devices.validation_steps(7, 8),
        steps_per_epoch=None if devices is not two else 1,
        epochs=2,
        shuffle=False,
        verbose=0,
    ).history
    return history, [weight.numpy().tolist() for weight in model.weights]


def noise(devices):
    with devices.scope():
        model = keras.Sequential([keras.Input((50,)), keras.layers.Dropout(0.5)])
        model.compile("sgd", "mse")
        devices.begin(model, keras.optimizers.SGD())
        devices.continue_from(model)
    drawn = tf.function(devices.strategy.run)(
        lambda: model(tf.ones((1, 50)), training=True)
    )
    parts = devices.strategy.experimental_local_results(drawn)
    return [part.numpy().tolist() for part in parts]


# The scale of a loss is a power of two, which changes nothing.
fits = [train(distribution.OneDevice()), train(two), train(two, is_scaled=True)]
print("RESULT" + json.dumps([fits, noise(two)]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    printed = harness.run_in_clean_process(
        PROGRAM, folder=folder, has_library=True, timeout=600
    )
    return json.loads(printed.split("RESULT")[1])


@pytest.mark.slow
def test_fit_equals_one_device(results):
    """Clipped gradients, statistics of normalization, losses, uneven validation."""
    (logs, weights), *others = results[0]
    for same_logs, same_weights in others:
        assert logs.keys() == same_logs.keys() >= {"loss", "val_loss"}
        for name, values in logs.items():
            np.testing.assert_allclose(same_logs[name], values, 1e-5, err_msg=name)
        for one, two in zip(weights, same_weights, strict=True):
            np.testing.assert_allclose(two, one, 1e-5, 1e-5)


@pytest.mark.slow
def test_each_replica_draws_its_own_noise(results):
    first, second = results[1]
    assert first != second
    assert set(np.ravel(first)) == set(np.ravel(second)) == {0.0, 2.0}


def test_patches_stay_in_the_instance():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    platform_repairs.build_from_local_batch(model)
    assert "_maybe_symbolic_build" in vars(model)
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert "_maybe_symbolic_build" not in vars(other)
    model.compile("sgd", "mse")
    model.fit(tf.ones((2, 2)), tf.ones((2, 1)), verbose=0)
