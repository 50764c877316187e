"""What guides say raises or warns, where no test of the code shows it."""

import io
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from deq_keras import layers, solvers
from tests import harness
from training.data import image_files
from training.errors import InputError
from training.runs import train

X = np.ones((4, 3), "float32")


def _model(solver="auto"):
    deq = layers.DEQ(layers.DenseCell(4), solver, name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class EquilibriumStep(keras.layers.Layer):
    """An RNN cell that solves an equilibrium in each step."""

    def __init__(self, **arguments):
        super().__init__()
        self.state_size = 4
        self.deq = layers.DEQ(layers.DenseCell(4), **arguments)

    def build(self, shape):
        self.deq.build((shape[0], shape[-1] + 4))

    def call(self, inputs, states, training=False):
        joined = keras.ops.concatenate([inputs, states[0]], axis=-1)
        state = self.deq(joined, training=training)
        return state, [state]


def _fit_rnn(unroll=False, **arguments):
    rnn = keras.layers.RNN(EquilibriumStep(**arguments), unroll=unroll)
    model = keras.Sequential([keras.Input((2, 3)), rnn, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2, 3)), np.ones((4, 1)), verbose=0)


def _predict_from_states():
    model = _model()
    with layers.SolveScope(model, initial_states={"deq": np.zeros((4, 4))}):
        model.predict(X, verbose=0)


def _monitor(**mode):
    callbacks = [keras.callbacks.EarlyStopping("val_deq_residual", **mode)]
    data = {"validation_data": (X, X[:, :1]), "verbose": 0}
    _model().fit(X, X[:, :1], callbacks=callbacks, **data)


def _load_without_import():
    """As a process that has not imported the library."""
    config = {"module": None, "class_name": "DEQ", "registered_name": "deq>DEQ"}
    keras.saving.deserialize_keras_object({**config, "config": {}})


def _load_shared_cell(path):
    cell = layers.DenseCell(3)
    deqs = [layers.DEQ(cell), layers.DEQ(cell)]
    keras.Sequential([keras.Input((3,)), *deqs]).save(path)
    keras.models.load_model(path)


def _compile_compact_solver_with_xla():
    job = types.SimpleNamespace(config=types.SimpleNamespace(jit_compile=True))
    train._check_compiles(job, _model(solvers.Anderson(compact=True)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (_predict_from_states, ValueError, "initial_states.*Received: .*deq"),
        (_fit_rnn, ValueError, "out of scope"),
        (_monitor, ValueError, "isn't able to automatically determine"),
        (_load_without_import, TypeError, "Could not locate class 'DEQ'"),
        (_compile_compact_solver_with_xla, InputError, "Received: jit_compile=True"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_raises(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_remedies():
    _fit_rnn(regularizer=None)
    _fit_rnn(unroll=True)
    _monitor(mode="min")


def test_shared_cells_are_not_loaded(tmp_path):
    with pytest.raises(ValueError):
        _load_shared_cell(tmp_path / "model.keras")


def test_mask_survives_a_convolution_in_the_cell():
    contracting = {"padding": "same", "kernel_initializer": "random_uniform"}
    deq = layers.DEQ(layers.cell_from(keras.layers.Conv1D(4, 3, **contracting)))
    mask = tf.constant([[True, True, False]])
    sequences = tf.random.stateless_normal((1, 3, 4), [0, 1])
    with pytest.warns(UserWarning, match="destroy the mask"):
        outputs = deq(sequences, mask=mask)
    assert outputs._keras_mask is not None
    assert not outputs[0, 2].numpy().any()


def test_orientation_of_a_photograph_is_ignored():
    pixels = np.arange(600, dtype="uint8").reshape(10, 20, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turned by 90 degrees.
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", exif=exif)
    image = image_files.decode(tf.constant(file.getvalue()), 3)
    assert image.shape == (10, 20, 3)


REPLICAS = """
import keras, numpy as np, tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
logical = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
tf.config.set_logical_device_configuration(cpu, logical)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def step(loss="mse", num=8, **clip):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    before = model.get_weights()[0]
    model.compile(keras.optimizers.SGD(0.1, **clip), loss)
    model.fit(x[:num], 10 * x[:num, :1], batch_size=8, verbose=0)
    return np.linalg.norm(model.get_weights()[0] - before)


def scalar(y, p):
    return tf.reduce_mean((y - p) ** 2)


def ratio(**arguments):
    with strategy.scope():
        distributed = step(**arguments)
    return distributed / step(**arguments)


assert abs(ratio() - 1) < 1e-4
assert abs(ratio(loss=scalar) - 2) < 1e-4
assert ratio(global_clipnorm=0.1) > 1.5
try:
    ratio(num=7)
except tf.errors.InvalidArgumentError:
    pass
else:
    raise AssertionError("a first batch that does not divide")
keras.distribution.set_distribution(keras.distribution.DataParallel())
expected = step()
keras.distribution.set_distribution(None)
assert step() == expected
"""


@pytest.mark.slow
def test_what_keras_does_with_several_replicas(tmp_path):
    """The guide on distribution lists it. A failure means that Keras has changed."""
    harness.run_in_clean_process(REPLICAS, folder=tmp_path)
