"""`EquivariantImagingModel` against its formula, with a dense matrix as operator."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from deq_keras import layers, models
from tests.regimes import slow

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(size=(10, 4 * 6 * 2))
IMAGES = RANDOM.uniform(size=(3, 4, 6, 2))


def _model(operator=None, has_noise_level=False, **options):
    operator = operator or layers.MatrixOperator(MATRIX, (4, 6, 2))
    channels = operator.image_shape[2]
    denoiser = layers.ImageDenoiser(4, 2, channels=channels, dtype="float64")
    cell = layers.ProximalGradientCell(operator, denoiser, dtype="float64")
    backbone = models.ImageRestorerBackbone(
        cell, has_noise_level, regularizer=options.pop("regularizer", None)
    )
    restorer = models.ImageRestorer(backbone)
    return models.EquivariantImagingModel(restorer, **options, seed=3)


def test_loss_equals_its_formula():
    model = _model(weight=0.3, regularizer="jacobian")
    measured = IMAGES.reshape(3, -1) @ MATRIX.T
    image = model(measured, training=True).numpy()
    penalties = [float(sum(model.losses))]
    loss = float(model.compute_loss(measured + 1.0, None, image))
    penalties.append(float(sum(model.restorer.losses)))
    assert min(penalties) > 0 and penalties[0] != penalties[1]

    model.seed_generator.state.assign(model.seed_generator.state * 0 + [3, 0])
    moved = model.transform(image).numpy()
    again = model.restorer(moved.reshape(3, -1) @ MATRIX.T, training=True).numpy()
    residual = np.sum((image.reshape(3, -1) @ MATRIX.T - measured - 1.0) ** 2)
    residual /= np.linalg.norm(MATRIX, 2) ** 2 * image.size
    change = np.mean((again - moved) ** 2)
    expected = residual + 0.3 * change + np.mean(penalties)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    terms = [model.measurement_loss.result(), model.equivariance_loss.result()]
    np.testing.assert_allclose(terms, [residual, change], rtol=1e-5)


@pytest.mark.parametrize("shape", [(4, 6), (3, 3)])
def test_transforms_are_all_symmetries_of_images(shape):
    model = _model(layers.Inpainting(np.ones(shape), (*shape, 1)))
    image = np.arange(np.prod(shape), dtype="float32").reshape(1, *shape, 1)
    turned = [image, image.transpose(0, 2, 1, 3)] if shape[0] == shape[1] else [image]
    expected = {
        np.roll(one[:, ::up, ::left], (i, j), (1, 2)).tobytes()
        for one in turned
        for up, left in itertools.product((1, -1), repeat=2)
        for i, j in np.ndindex(shape)
    }
    images = np.repeat(image, 1500, axis=0)
    found = {one.tobytes() for one in model.transform(images).numpy()}
    assert found == expected and len(found) == 4 * len(turned) * image.size


def test_noise_has_the_level_of_each_image():
    model, seen = _model(has_noise_level=True), []
    restore, levels = model.restorer.call, ops.array([[0.0], [0.5], [50.0]], "float64")
    model.restorer.call = lambda inputs, **options: (
        seen.append(inputs) or restore(inputs, **options)
    )
    measured = ops.array(IMAGES.reshape(3, -1) @ MATRIX.T)
    inputs = {"measurements": measured, "noise_level": levels}
    noise = []
    for _ in range(40):
        state = ops.copy(model.seed_generator.state)
        clean = model.transform(IMAGES).numpy().reshape(3, -1) @ MATRIX.T
        model.seed_generator.state.assign(state)
        model.compute_loss(inputs, None, IMAGES)
        noise.append(seen[-1]["measurements"] - clean)
    deviation = np.std(noise, axis=(0, 2))
    np.testing.assert_allclose(deviation, levels[:, 0], rtol=0.1, atol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, slow(True)])
def test_fit_logs_both_terms_and_files_keep_the_model(jit_compile, tmp_path):
    model = _model(noise=0.1)
    model.compile(jit_compile=jit_compile)
    measured = IMAGES.reshape(3, -1) @ MATRIX.T
    logs = model.fit(measured, batch_size=2, verbose=0).history
    terms = logs["measurement_loss"][0] + logs["equivariance_loss"][0]
    np.testing.assert_allclose(logs["loss"], terms, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    assert (copy.noise, copy.weight, copy.seed) == (0.1, 1.0, 3)
    np.testing.assert_array_equal(copy(measured), model.restorer(measured))
    with pytest.raises(ValueError, match="loss.*Received"):
        model.compile(loss="mse")
    with pytest.raises(ValueError, match="restorer.*Received"):
        models.EquivariantImagingModel(keras.Sequential())


def test_weights_of_samples_raise():
    model = _model()
    with pytest.raises(ValueError, match="sample_weight=None.*Received"):
        model.compute_loss(MATRIX, sample_weight=np.ones(10))
