"""MDEQ models: sizes of the publication, raw pixels, files and presets."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models, solvers
from tests.regimes import slow

# KerasHub makes a data set of the arrays, which Keras then says it cannot shuffle.
QUIET = {"verbose": 0, "shuffle": False}


def _backbone(**kwargs):
    arguments = {
        "filters": (8, 16),
        "expansion": 2,
        "num_downsamplings": 0,
        "solver": solvers.Anderson(max_iter=4),
        "regularizer": None,  # Tracing it takes longest.
        **kwargs,
    }
    return models.MDEQBackbone(**arguments)


def _classifier(backbone=None, **kwargs):
    arguments = {"head_filters": (2, 4), "final_filters": 16, **kwargs}
    return models.MDEQImageClassifier(backbone or _backbone(), 3, **arguments)


def _segmenter(backbone=None, **kwargs):
    # One scale, which is built fast: its head alone has tests with more.
    backbone = backbone or _backbone(filters=(8,), num_downsamplings=1)
    return models.MDEQImageSegmenter(backbone, 3, **kwargs)


def _images(batch=4, size=8, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(batch, size, size, 3)).astype("float32")


def _pixels(batch=8, size=8):
    """Dark and bright images, and which is which."""
    labels = np.arange(batch) % 2
    noise = np.random.default_rng(0).integers(0, 60, (batch, size, size, 3))
    return (noise + 190 * labels[:, None, None, None]).astype("uint8"), labels


def _converter(size=8):
    return models.MDEQImageConverter.for_dataset("cifar10", image_size=(size, size))


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(0)
    preprocessor = models.MDEQImageClassifierPreprocessor(_converter())
    return _classifier(preprocessor=preprocessor)


@pytest.fixture(scope="module")
def segmenter():
    keras.utils.set_random_seed(0)
    preprocessor = models.MDEQImageSegmenterPreprocessor(_converter())
    return _segmenter(preprocessor=preprocessor)


TASKS = pytest.mark.parametrize("name", ["classifier", slow("segmenter")])
# Published configurations: parameters of the whole model and of f, by the reference.
SIZES = {
    "mdeq_tiny_cifar10": (158_890, 111_696),
    "mdeq_large_cifar10": (11_097_438, 8_715_232),
    "mdeq_small_imagenet": (16_808_936, 8_716_192),
    "mdeq_xl_imagenet": (90_463_280, 77_699_952),
}


def _num_parameters(layer):
    return sum(int(np.prod(weight.shape)) for weight in layer.trainable_weights)


@pytest.mark.parametrize(
    "preset",
    [
        "mdeq_tiny_cifar10",
        *map(slow, ["mdeq_large_cifar10", "mdeq_small_imagenet", "mdeq_xl_imagenet"]),
    ],
)
def test_numbers_of_parameters_are_the_published_ones(preset):
    model = models.MDEQImageClassifier.from_preset(preset, load_weights=False)
    cell = model.backbone.deq.cell
    assert (_num_parameters(model), _num_parameters(cell)) == SIZES[preset]
    assert model.num_classes == (10 if "cifar" in preset else 1000)


@pytest.mark.slow
def test_segments_raw_pixels(segmenter):
    model = segmenter
    pixels, labels = _pixels()
    maps = np.broadcast_to(labels[:, None, None], (8, 8, 8)).astype("int32").copy()
    maps[:, :2] = 255
    model.compile(jit_compile=False)
    history = model.fit(pixels, maps, batch_size=8, epochs=2, **QUIET).history
    assert np.all(np.isfinite(history["loss"]))
    before = model.evaluate(pixels, maps, verbose=0, return_dict=True)
    assert set(before) >= {"loss", "mean_io_u"}
    logits = model.predict(pixels, verbose=0)
    assert logits.shape == (8, 8, 8, 3)
    chosen = np.take_along_axis(
        tf.nn.log_softmax(logits).numpy()[:, 2:], maps[:, 2:, :, None], axis=-1
    )
    # Pixels of the label 255 do not count.
    np.testing.assert_allclose(before["loss"], -chosen.mean(), rtol=1e-3)


@pytest.mark.slow
@TASKS
def test_files_and_presets(name, request, tmp_path):
    model = request.getfixturevalue(name)
    images = _images()
    expected = model(images)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    restored = (
        keras.saving.load_model(tmp_path / "model.keras"),
        type(model).from_preset(str(tmp_path / "preset")),
    )
    pixels, _ = _pixels()
    for copy in restored:
        np.testing.assert_allclose(copy(images), expected, atol=1e-6)
        assert copy.backbone.get_config() == model.backbone.get_config()
        np.testing.assert_array_equal(
            copy.preprocessor(pixels), model.preprocessor(pixels)
        )
    backbone = models.MDEQBackbone.from_preset(str(tmp_path / "preset"))
    np.testing.assert_allclose(
        backbone(images)[-1], model.backbone(images)[-1], atol=1e-6
    )


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 8, 8), "float32"),
        np.zeros((2, 9, 8, 3), "float32"),
        np.zeros((2, 8, 8, 3), "uint8"),
    ],
    ids=lambda images: f"{images.shape} {images.dtype}",
)
def test_other_images_raise(classifier, images):
    for model in (classifier, classifier.backbone):
        with pytest.raises(ValueError):
            model(images)


@pytest.mark.parametrize("make", [_segmenter, slow(_classifier)])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_default_loss_knows_the_activation(make, activation):
    model = make(activation=activation)
    by_default = model.loss.from_logits
    model.compile()
    assert by_default == model.loss.from_logits == (activation is None)
