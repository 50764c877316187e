"""What operators, denoisers and reconstruction cells refuse."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers

SHAPE = (8, 8, 1)
ONES = np.ones((8, 8))


def _blur(**arguments):
    return layers.Blur(**{"kernel": np.ones((3, 3)), "image_shape": SHAPE, **arguments})


def _cell(operator=None, denoiser=None, cls=layers.ProximalGradientCell, **arguments):
    denoiser = denoiser or layers.ImageDenoiser(4, 2)
    return cls(_blur() if operator is None else operator, denoiser, **arguments)


def _solve(cell, *inputs):
    layers.DEQ(cell)(inputs[0] if len(inputs) == 1 else list(inputs))


def _images(*shape):
    return np.ones(shape, "float32")


# For images of eight rows, it keeps the shape.
FIRST = keras.layers.Conv2D(8, 3, padding="same", data_format="channels_first")
IMAGES = _images(2, *SHAPE)
UNKNOWN = (None, None, 8, 1)


class WrongAdjoint(layers.LinearOperator):
    def call(self, images):
        return 2 * images

    def adjoint(self, measurements):
        return measurements


class WrongNormal(layers.LinearOperator):
    def call(self, images):
        return 2 * images

    def normal(self, images):
        return images


class Affine(layers.LinearOperator):
    def call(self, images):
        return images + 1


class Rotation(layers.LinearOperator):
    def call(self, images):
        transform = np.float32([[0.9, -0.4, 1.7, 0.4, 0.9, -1.0, 0, 0]])
        return keras.ops.image.affine_transform(images, transform)


class Zero(layers.LinearOperator):
    def call(self, images):
        return 0 * images


def _with(layer):
    denoiser = keras.Sequential([keras.layers.Conv2D(1, 3, padding="same"), layer])
    return _cell(denoiser=denoiser)


# Rows: words of the message, and a function that raises it.
ROWS = [
    ("image_shape", "image_shape=(8, 8)", lambda: _blur(image_shape=(8, 8))),
    ("image_shape", "image_shape=(8, 0, 1)", lambda: _blur(image_shape=(8, 0, 1))),
    ("kernel", "kernel of shape (3,)", lambda: _blur(kernel=np.ones(3))),
    ("kernel", "kernel of shape (2, 3)", lambda: _blur(kernel=np.ones((2, 3)))),
    ("kernel", "kernel of shape (9, 9)", lambda: _blur(kernel=np.ones((9, 9)))),
    ("kernel", "kernel of shape (3, 3)", lambda: _blur(kernel=np.zeros((3, 3)))),
    ("kernel", "finite", lambda: _blur(kernel=np.full((3, 3), np.nan))),
    ("kernel", "dtype complex128", lambda: _blur(kernel=1j * np.ones((3, 3)))),
    ("kernel", "dtype <U", lambda: _blur(kernel=[["a"]])),
    ("boundary", "boundary='mirror'", lambda: _blur(boundary="mirror")),
    ("mask", "from 0.0 to 0.0", lambda: layers.Inpainting(0 * ONES, SHAPE)),
    ("mask", "from 0.5 to 0.5", lambda: layers.Inpainting(0.5 * ONES, SHAPE)),
    ("mask", "shape (8, 7)", lambda: layers.Inpainting(ONES[:, :7], SHAPE)),
    ("mask", "shape (8, 7)", lambda: layers.FourierSampling(ONES[:, :7], SHAPE)),
    ("mask", "(8, 8, 3)", lambda: layers.FourierSampling(ONES, (8, 8, 3))),
    ("mask", "to 255.0", lambda: layers.FourierSampling(255 * ONES, SHAPE)),
    ("factor", "factor=3", lambda: layers.Downsampling(3, SHAPE)),
    ("factor", "factor=0", lambda: layers.Downsampling(0, SHAPE)),
    ("num_angles", "num_angles=0", lambda: layers.RadonTransform(SHAPE, 0)),
    ("matrix", "shape (3, 63)", lambda: layers.MatrixOperator(np.ones((3, 63)), SHAPE)),
    ("images", "(2, 6, 8, 1)", lambda: _blur()(_images(2, 6, 8, 1))),
    ("WrongAdjoint", "adjoint", lambda: WrongAdjoint(SHAPE).check_adjoint()),
    ("WrongNormal", "normal", lambda: WrongNormal(SHAPE).check_adjoint()),
    ("Affine", "linear", lambda: Affine(SHAPE).check_adjoint()),
    ("Rotation", "map_coordinates", lambda: Rotation(SHAPE).check_adjoint()),
    ("norm", "norm=0.0", lambda: Zero(SHAPE).norm),
    ("inverse", "Zero", lambda: Zero(SHAPE).inverse(IMAGES, 1)),
    ("filters", "filters=0", lambda: layers.ImageDenoiser(0)),
    ("num_layers", "num_layers=1", lambda: layers.ImageDenoiser(num_layers=1)),
    ("max_norm", "max_norm=1.5", lambda: layers.ImageDenoiser(max_norm=1.5)),
    ("channels", "channels=0", lambda: layers.ImageDenoiser(channels=0)),
    ("channels", "channels=2", lambda: layers.ImageDenoiser(channels=2)(IMAGES)),
    ("static", "None", lambda: layers.ImageDenoiser(max_norm=1).build(UNKNOWN)),
    ("operator", "operator=<Dense", lambda: _cell(keras.layers.Dense(3))),
    ("step_size", "step_size=1", lambda: _cell(step_size=1)),
    ("step_size", "step_size=-0.1", lambda: _cell(step_size=-0.1)),
    ("mu", "mu=0", lambda: _cell(cls=layers.HalfQuadraticCell, mu=0)),
    ("inverse", "Zero", lambda: _cell(Zero(SHAPE), cls=layers.HalfQuadraticCell)),
    (
        "inverse",
        "Blur",
        lambda: _cell(_blur(boundary="zero"), cls=layers.HalfQuadraticCell),
    ),
    ("WrongAdjoint", "adjoint", lambda: _solve(_cell(WrongAdjoint(SHAPE)), IMAGES)),
    ("measurements", "(2, 9, 8, 1)", lambda: _solve(_cell(), _images(2, 9, 8, 1))),
    ("real", "complex64", lambda: _blur().adjoint(IMAGES.astype("complex64"))),
    ("real", "complex64", lambda: _solve(_cell(), IMAGES.astype("complex64"))),
    ("noise level", "(2, 2)", lambda: _solve(_cell(), IMAGES, _images(2, 2))),
    ("channels=1", "returns 2", lambda: _solve(_cell(), IMAGES, _images(2))),
    ("BatchNormalization", "Group", lambda: _with(keras.layers.BatchNormalization())),
    ("Dropout", "rate", lambda: _with(keras.layers.Dropout(0.5))),
    ("channels", "'channels_first'", lambda: _solve(_cell(None, FIRST), IMAGES)),
]


@pytest.mark.parametrize(("name", "received", "call"), ROWS)
def test_bad_input_is_refused(name, received, call):
    with pytest.raises(ValueError, match=re.escape(received)) as error:
        call()
    message = str(error.value)
    assert name in message and "Received: " in message


def test_a_built_layer_refuses_images_of_another_size():
    deq = layers.DEQ(_cell(), solvers.FixedPointIteration(2))
    deq(IMAGES)
    with pytest.raises(ValueError, match=r"measurements of shape \(2, 6, 8, 1\)"):
        deq(_images(2, 6, 8, 1))
    # Keras traces `predict` for any height, once it has seen two.
    spec = tf.TensorSpec((None, None, 8, 1))
    call = tf.function(deq, input_signature=[spec], autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2,6,8,1\]"):
        call(_images(2, 6, 8, 1))
