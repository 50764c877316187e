"""Which operations of a cell LiteRT and ONNX have, as the guide lists them."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, serving, solvers

pytestmark = pytest.mark.slow

GUIDE = pathlib.Path(__file__).parents[2] / "docs/guides/serving.md"
TABLE = GUIDE.read_text().split("### Operations in a cell")[1]
ROWS = re.findall(r"^\| (.*?) \| (yes|no) \| (yes|no) \|", TABLE, re.MULTILINE)
SHAPE = (4, 4, 4)
RANDOM = np.random.default_rng(0)
MATRIX = (RANDOM.normal(size=(64, 64)) / 64).astype("float32")
ORDER = RANDOM.permutation(64).astype("int32")


class Layer(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def compute_output_shape(self, input_shape):
        return input_shape

    def call(self, inputs):
        return 0.1 * self.function(inputs)


class Convolved(layers.LinearOperator):
    def call(self, images):
        return ops.conv(images, MATRIX[:9, :16].reshape(3, 3, 4, 4), padding="same")


def _columns(function):
    """Applies a function to the matrix of columns, one for each image."""
    return lambda x: ops.reshape(
        ops.transpose(function(ops.transpose(ops.reshape(x, (-1, 64))))), (-1, *SHAPE)
    )


def _sparse(columns):
    matrix = tf.sparse.from_dense(tf.where(MATRIX > 0, MATRIX, 0.0))
    return tf.sparse.sparse_dense_matmul(matrix, columns)


# In the order of the table.
FUNCTIONS = [
    lambda x: ops.one_hot(ops.argmax(x, axis=-1), 4),
    lambda x: ops.fft2((x, ops.zeros_like(x)))[0],
    _columns(lambda x: ops.solve(MATRIX + np.eye(64, dtype="float32"), x)),
    _columns(_sparse),
    lambda x: ops.roll(x, 1, axis=1),
    ops.erf,
    keras.layers.Conv2D(4, 3, padding="same", groups=2),
    Convolved(SHAPE).adjoint,
]
BOTH = {
    "flip, pad": lambda x: ops.pad(
        ops.flip(x[:, 1:], 1), ((0, 0), (1, 0), (0, 0), (0, 0))
    ),
    "cond": lambda x: ops.cond(ops.sum(MATRIX) > 0, lambda: x, lambda: 2 * x),
    "cumsum": lambda x: ops.cumsum(x, axis=1),
    "fori_loop": lambda x: ops.fori_loop(0, 3, lambda _, y: ops.tanh(y), x),
    "repeat": lambda x: ops.repeat(x[:, :2], 2, axis=1),
    "resize": lambda x: ops.image.resize(ops.image.resize(x, (2, 2)), (4, 4)),
    "scatter": lambda x: ops.scatter_update(x, [[0, 0, 0, 0]], [1.0]),
    "segments": _columns(
        lambda x: ops.take(
            ops.segment_sum(x, np.arange(64) // 2, num_segments=32), ORDER // 2, axis=0
        )
    ),
    "sort": lambda x: ops.sort(x, axis=1) + ops.top_k(x, 4)[0],
    "vectorized_map": lambda x: ops.vectorized_map(ops.tanh, x),
    "where": lambda x: ops.where(x > 0, x, 2 * x),
}
CASES = {row[0]: (f, *row[1:]) for row, f in zip(ROWS, FUNCTIONS, strict=True)}
CASES |= {name: (function, "yes", "yes") for name, function in BOTH.items()}


@pytest.mark.parametrize("name", CASES)
def test_operations_that_export(name, tmp_path, monkeypatch):
    function, *expected = CASES[name]
    # The check in a process of its own takes most of the time of an export.
    monkeypatch.setattr(serving.check, "check_export", lambda *_: 0.0)
    block = keras.Sequential([Layer(function), keras.layers.Activation("tanh")])
    deq = layers.DEQ(layers.cell_from(block), solvers.FixedPointIteration(4))
    model = keras.Sequential([keras.Input(SHAPE), deq])
    inputs = RANDOM.normal(size=(2, *SHAPE)).astype("float32")
    for export, suffix, answer in zip(
        (serving.export_litert, serving.export_onnx),
        (".tflite", ".onnx"),
        expected,
        strict=True,
    ):
        path = tmp_path / f"model{suffix}"
        if answer == "no":
            with pytest.raises(serving.ExportError):
                export(model, path, samples=inputs)
            continue
        export(model, path, samples=inputs)
        received = serving.load(path)(inputs)["outputs"]
        np.testing.assert_allclose(received, model(inputs), atol=1e-5)
