import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models, solvers

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


TASKS = pytest.mark.parametrize(
    "name", ["classifier", pytest.param("segmenter", marks=pytest.mark.slow)]
)
# Published configurations: parameters of the whole model and of f, by the reference.
SIZES = {
    "mdeq_tiny_cifar10": (158_890, 111_696),
    "mdeq_large_cifar10": (11_097_438, 8_715_232),
    "mdeq_large_regularized_cifar10": (11_097_438, 8_715_232),
    "mdeq_small_imagenet": (16_808_936, 8_716_192),
    "mdeq_small_regularized_imagenet": (18_613_496, 8_715_232),
    "mdeq_large_imagenet": (67_063_624, 54_422_800),
    "mdeq_large_regularized_imagenet": (67_061_224, 54_420_400),
    "mdeq_xl_imagenet": (90_463_280, 77_699_952),
}
CITYSCAPES = {f"mdeq_{size}_cityscapes" for size in ("small", "large", "xl")}


def test_names_of_the_presets():
    trained = {"digits"}
    assert set(models.MDEQImageClassifier.presets) == set(SIZES) | trained
    assert set(models.MDEQImageSegmenter.presets) == CITYSCAPES
    assert set(models.MDEQBackbone.presets) == set(SIZES) | CITYSCAPES | trained


def _num_parameters(layer):
    return sum(int(np.prod(weight.shape)) for weight in layer.trainable_weights)


@pytest.mark.parametrize(
    "preset",
    [
        name if "tiny" in name else pytest.param(name, marks=pytest.mark.slow)
        for name in SIZES
    ],
)
def test_numbers_of_parameters_are_the_published_ones(preset):
    model = models.MDEQImageClassifier.from_preset(preset, load_weights=False)
    cell = model.backbone.deq.cell
    assert (_num_parameters(model), _num_parameters(cell)) == SIZES[preset]
    assert model.num_classes == (10 if "cifar" in preset else 1000)


@pytest.mark.slow
def test_preset_of_a_segmenter():
    name = "mdeq_small_cityscapes"
    model = models.MDEQImageSegmenter.from_preset(name, load_weights=False)
    assert _num_parameters(model.backbone.deq.cell) == SIZES["mdeq_small_imagenet"][1]
    assert model.num_classes == 19
    assert model.head.momentum == model.backbone.stem.momentum == 0.99
    assert model.output_shape == (None, None, None, 19)


@pytest.mark.parametrize(
    "cls, preset",
    [
        (models.MDEQBackbone, "mdeq_tiny_cifar10"),
        (models.MDEQImageClassifier, "mdeq_tiny_cifar10"),
        (models.MDEQImageSegmenter, "mdeq_small_cityscapes"),
    ],
)
def test_presets_have_no_weights(cls, preset):
    message = f"'{preset}' is an architecture without weights.*load_weights=False"
    with pytest.raises(ValueError, match=message):
        cls.from_preset(preset)


def test_arguments_of_a_preset_may_be_others():
    backbone = models.MDEQBackbone.from_preset(
        "mdeq_tiny_cifar10", load_weights=False, filters=(8,), dropout=0.0, groups=4
    )
    assert backbone.filters == (8,)
    assert backbone.dropout == 0.0
    assert not backbone.post_affine


@pytest.mark.slow
def test_classifies_raw_pixels(classifier):
    model = classifier
    pixels, labels = _pixels()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # Compiling would take longer than the rest of this file.
    )
    history = model.fit(pixels, labels, batch_size=8, epochs=15, **QUIET).history
    assert history["accuracy"][0] < history["accuracy"][-1] == 1
    assert "deq_evaluations" in history
    results = model.evaluate(pixels, labels, verbose=0, return_dict=True)
    assert np.isfinite(results["loss"])
    logits = model.predict(pixels, verbose=0)
    normalized = model.preprocessor(pixels)
    np.testing.assert_allclose(logits, model(normalized), atol=1e-4)


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
def test_compile_defaults_of_the_segmenter_follow_its_activation():
    backbone = _backbone(filters=(8,))
    for activation, from_logits in ((None, True), ("softmax", False)):
        model = _segmenter(backbone, activation=activation)
        model.compile()
        config = model.loss.get_config()
        assert config["from_logits"] == from_logits
        assert config["ignore_class"] == 255


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


@TASKS
def test_no_layer_is_held_in_a_list_of_lists(name, request):
    # Keras saves what such lists hold since 3.15, and leaves it out before.
    for layer in request.getfixturevalue(name)._flatten_layers():
        if not type(layer).__module__.startswith("deq_keras.layers"):
            continue
        for attribute, value in vars(layer).items():
            for part in value if isinstance(value, (list, tuple)) else ():
                layers = keras.tree.flatten(part) if keras.tree.is_nested(part) else []
                is_nested = any(isinstance(item, keras.Layer) for item in layers)
                assert not is_nested, (layer.name, attribute)


@TASKS
@pytest.mark.slow
def test_exports(name, request, tmp_path):
    model = request.getfixturevalue(name)
    images = _images()
    expected = model(images)
    model.export(tmp_path / "saved", verbose=False)
    restored = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(restored.serve(images), expected, atol=1e-4)
    np.testing.assert_allclose(restored.serve(images[:1]), expected[:1], atol=1e-4)


@pytest.mark.slow
def test_mixed_precision():
    backbone = _backbone(
        filters=(8,), regularizer="contraction", dtype="mixed_bfloat16"
    )
    model = _classifier(backbone, head_filters=(2,))
    assert model.backbone.deq.compute_dtype == "bfloat16"
    assert model(_images()).dtype == "float32"
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    history = model.fit(_images(), np.arange(4) % 3, epochs=2, **QUIET).history
    assert np.all(np.isfinite(history["loss"]))
    assert all(np.all(np.isfinite(weight.numpy())) for weight in model.weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, arguments",
    [(_classifier, {"head_filters": (2,)}), (_segmenter, {"kernel_size": 3})],
)
def test_dtype_of_the_head(make, arguments):
    model = make(_backbone(filters=(8,), dtype="bfloat16"), **arguments)
    assert model.get_config()["head_dtype"] is None
    assert model.head.compute_dtype == "bfloat16"
    model = make(model.backbone, head_dtype="float32", **arguments)
    assert model.head.compute_dtype == "float32"
    assert model.backbone.deq.compute_dtype == "bfloat16"
    assert model(_images()).dtype == "float32"
    copy = type(model).from_config(model.get_config())
    assert copy.head.compute_dtype == "float32"
    assert copy.get_config() == model.get_config()


def test_the_config_of_a_task_is_plain_data():
    model = _segmenter(kernel_size=np.int64(3))
    json.dumps({**model.get_config(), "backbone": None})


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 8, 8), "float32"),
        np.zeros((2, 8, 8, 4), "float32"),
        np.zeros((2, 9, 8, 3), "float32"),
        np.zeros((2, 8, 7, 3), "float32"),
        np.zeros((2, 8, 8, 3), "uint8"),
    ],
    ids=lambda images: f"{images.shape} {images.dtype}",
)
def test_bad_images_are_refused(classifier, images):
    # Keras itself refuses other channels.
    message = r"\(batch, height, width, 3\).*divisible by 2|expected shape=.*None, 3\)"
    for model in (classifier, classifier.backbone):
        with pytest.raises(ValueError, match=message):
            model(images)


@pytest.mark.slow
def test_sizes_may_vary(segmenter):
    for shape in ((1, 4, 8, 3), (3, 12, 4, 3)):
        assert segmenter(np.zeros(shape, "float32")).shape == (*shape[:3], 3)


@pytest.mark.slow
def test_budget_may_change_after_training(classifier):
    images = _images()
    deq = classifier.backbone.deq
    four = deq.solver
    injection = classifier.backbone.stem(images)
    coarse = classifier(images)
    deq.solver = solvers.Anderson(max_iter=8, tol=1e-6)
    try:
        fine = classifier(images)
        solution = deq.solve(injection)
    finally:
        deq.solver = four
    assert np.max(solution.num_evaluations) > 4
    assert np.any(np.abs(fine - coarse) > 1e-7)
    np.testing.assert_array_equal(classifier(images), coarse)


def test_images_of_a_given_shape():
    backbone = _backbone(filters=(8,), image_shape=(8, 16, 1))
    assert [tuple(m.shape) for m in backbone.outputs] == [(None, 8, 16, 8)]


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match="one of .*'cifar10', 'imagenet'.*'mnist'"):
        models.MDEQImageConverter.for_dataset("mnist")
