"""Image restorers: files, dtypes, training, LoRA, the preprocessor and refusals."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, metrics, models, solvers

# KerasHub makes a data set of the arrays, which Keras then says it cannot shuffle.
QUIET = {"verbose": 0, "shuffle": False}
SHAPE = (8, 8, 1)
IMAGES = np.random.default_rng(0).integers(0, 256, (4, *SHAPE)).astype("uint8")
MEASURED = np.random.default_rng(1).uniform(size=(4, 4, 4, 1)).astype("float32")
PIXELS = (255 * MEASURED).astype("uint8")
OPERATOR = {"factor": 2, "image_shape": SHAPE}
SOLVER = solvers.FixedPointIteration(max_iter=4)


def _operator():
    return layers.Downsampling(**OPERATOR)


@keras.saving.register_keras_serializable("deq_keras_tests")
class Scaled(layers.LinearOperator):
    def build(self, input_shape):
        super().build(input_shape)
        self.scale = self.add_weight((), "ones", name="scale")

    def call(self, images):
        return self.scale * images


def _backbone(cell_class=layers.ProximalGradientCell, dtype=None, **kwargs):
    channels = 1 if kwargs.get("has_noise_level") else None
    denoiser = layers.ImageDenoiser(4, 2, channels=channels, dtype=dtype)
    cell = cell_class(_operator(), denoiser, dtype=dtype)
    arguments = {"solver": SOLVER, "gradient": "phantom", **kwargs}
    return models.ImageRestorerBackbone(cell, **arguments)


def _preprocessor(**kwargs):
    return models.ImageRestorerPreprocessor.for_operator(_operator(), **kwargs)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return models.ImageRestorer(_backbone(), _preprocessor())


def _restore(model):
    """What the model predicts from raw pixels, without tracing a graph."""
    return model(model.preprocessor(PIXELS)).numpy()


def test_trains_on_raw_pixels_and_loads_as_it_was(tmp_path):
    keras.utils.set_random_seed(0)
    model = models.ImageRestorer(_backbone(), _preprocessor())
    model.run_eagerly = True
    before = [weight.numpy() for weight in model.trainable_weights]
    history = model.fit(PIXELS, IMAGES, epochs=3, batch_size=4, **QUIET).history
    assert history["psnr"][-1] > history["psnr"][0]
    assert "deq_evaluations" in history
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.any(weight.numpy() != old), weight.path
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    expected = model.predict(PIXELS, verbose=0)
    assert expected.shape == (4, *SHAPE) and expected.dtype == "float32"
    np.testing.assert_array_equal(_restore(model), expected)
    copy = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(_restore(copy), expected)
    assert int(copy.optimizer.iterations) == 3
    assert copy.optimizer.global_clipnorm == 1.0
    path = str(tmp_path / "preset")
    copy = models.ImageRestorer.from_preset(path)
    np.testing.assert_array_equal(_restore(copy), expected)
    half = models.ImageRestorer.from_preset(path, dtype="mixed_bfloat16")
    cell = half.backbone.deq.cell
    assert cell.compute_dtype == cell.denoiser.compute_dtype == "bfloat16"
    outputs = half(half.preprocessor(PIXELS))
    assert outputs.dtype == "float32"
    np.testing.assert_allclose(outputs, expected, atol=0.05)


@pytest.mark.parametrize("has_noise_level", [False, True])
def test_config_round_trip(has_noise_level):
    backbone = _backbone(
        layers.HalfQuadraticCell,
        has_noise_level=has_noise_level,
        regularizer="residual",
        max_iter_jitter=2,
    )
    config = json.loads(json.dumps(backbone.get_config()))
    copy = models.ImageRestorerBackbone.from_config(config)
    assert json.loads(json.dumps(copy.get_config())) == config
    for weight in backbone.trainable_weights:
        weight.assign(weight + 0.1)
    copy.set_weights(backbone.get_weights())
    outputs = []
    for level in (0.0, 0.5):
        inputs = {"measurements": MEASURED, "noise_level": np.full((4, 1), level)}
        inputs = inputs if has_noise_level else MEASURED
        outputs.append(copy(inputs))
        np.testing.assert_array_equal(outputs[-1], backbone(inputs))
    assert (np.abs(outputs[0] - outputs[1]).max() > 1e-3) == has_noise_level


def test_lora_trains_only_low_rank_updates():
    backbone = _backbone()
    assert backbone.default_lora_layer_names() == ["conv1", "conv2"]
    expected = backbone(MEASURED)
    backbone.enable_lora(1)
    np.testing.assert_allclose(backbone(MEASURED), expected, atol=1e-6)
    names = [weight.name for weight in backbone.trainable_variables]
    assert sorted(names) == ["lora_kernel_a", "lora_kernel_a"] + 2 * ["lora_kernel_b"]
    for weight in backbone.trainable_variables:
        weight.assign(weight + 0.1)
    assert np.abs(backbone(MEASURED) - expected).max() > 1e-3


def test_with_operator_keeps_the_weights(model):
    for weight in model.trainable_weights:
        weight.assign(weight + 0.01)
    whole = model.with_operator(layers.Downsampling(2, (16, 8, 1)))
    assert whole.preprocessor.measurement_shape == (8, 4, 1)
    for one, two in zip(model.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(one, two)
    tall = np.concatenate([PIXELS[:1], PIXELS[:1]], axis=1)
    images = whole(whole.preprocessor(tall))
    # Far from the seam, the tall image is the small one twice.
    expected = _restore(model)
    np.testing.assert_allclose(images[:, :1], expected[:1, :1], atol=1e-5)
    # For the same operator, the model is the same.
    np.testing.assert_array_equal(_restore(model.with_operator(_operator())), expected)
    # An operator with weights keeps them, alone and in place of another one.
    scaled = Scaled(SHAPE)
    scaled.adjoint(IMAGES[:1].astype("float32"))
    scaled.scale.assign(3.0)
    model = models.ImageRestorer(_backbone()).with_operator(scaled)
    model.backbone.deq.cell.operator.scale.assign(2.0)
    for operator, value in ((scaled, [3.0]), (Scaled(SHAPE), [1.0]), (_operator(), [])):
        model = model.with_operator(operator)
        assert model.backbone.deq.cell.operator.get_weights() == value


def test_psnr_is_tensorflows():
    true, predicted = IMAGES[:3] / 255.0, IMAGES[1:] / 255.0
    metric = metrics.PeakSignalToNoiseRatio(2.0)
    metric.update_state(true[:2], predicted[:2])
    metric.update_state(true[2:], predicted[2:], [3.0])
    ratios = tf.image.psnr(true, predicted, 2.0).numpy()
    expected = np.average(ratios, weights=[1, 1, 3])
    np.testing.assert_allclose(metric.result(), expected, rtol=1e-5)
    assert type(metric).from_config(metric.get_config()).max_value == 2.0


def test_equal_images_without_weight_do_not_count():
    metric = metrics.PeakSignalToNoiseRatio()
    true = np.zeros((2, 4, 4, 1))
    predicted = true + [[[[0.1]]], [[[0.0]]]]
    metric.update_state(true, predicted, sample_weight=[1.0, 0.0])
    np.testing.assert_allclose(metric.result(), 20.0, rtol=1e-5)


def test_preprocessor_converts_pixels_alone_and_in_pipelines():
    preprocessor = _preprocessor()
    measured, images = preprocessor(PIXELS, IMAGES)
    np.testing.assert_array_equal(measured, (PIXELS / 255).astype("float32"))
    np.testing.assert_array_equal(images, (IMAGES / 255).astype("float32"))
    np.testing.assert_array_equal(preprocessor(PIXELS.astype("uint16") * 257), measured)
    np.testing.assert_array_equal(preprocessor(MEASURED.astype("float64")), MEASURED)
    level = np.full((4, 1), 0.1)
    both = preprocessor({"measurements": PIXELS, "noise_level": level})
    assert both["noise_level"].dtype == "float32"
    with_noise = MEASURED + 0.5
    np.testing.assert_array_equal(preprocessor(with_noise), with_noise)
    data = tf.data.Dataset.from_tensor_slices(MEASURED + 10).map(preprocessor)
    with pytest.raises(tf.errors.InvalidArgumentError, match="from -1 to 2"):
        next(iter(data))
    wide = _preprocessor(measurement_range=(0.0, 20.0))
    np.testing.assert_array_equal(wide(MEASURED + 10), MEASURED + 10)


def _with_noise_level(level):
    inputs = {"measurements": PIXELS, "noise_level": np.full((4, 1), level)}
    return _preprocessor()(inputs)


REFUSALS = {
    "noise of pixels": (lambda: _with_noise_level(2.0), "levels.*from 0 to 1.5.*255"),
    "negative noise": (lambda: _with_noise_level(-0.1), "noise levels"),
    "values": (lambda: _preprocessor()(255 * MEASURED), "measurements"),
    "not a number": (lambda: _preprocessor()(MEASURED * np.nan), "measurements"),
    "bright": (lambda: _preprocessor()(MEASURED, IMAGES + 0.5), "images"),
    "complex": (lambda: _preprocessor()(MEASURED + 1j), "measurements"),
    "signed": (lambda: _preprocessor()(PIXELS.astype("int32")), "measurements"),
    "size": (lambda: _preprocessor()(IMAGES), "measurements"),
    "targets": (lambda: _preprocessor()(PIXELS, PIXELS), "images"),
    "range": (lambda: _preprocessor(measurement_range=(1, 0)), "measurement_range"),
    "keys": (lambda: _preprocessor()({"measurements": PIXELS}), "noise_level"),
    "cell": (lambda: models.ImageRestorerBackbone(layers.DenseCell(4)), "cell"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, argument = REFUSALS[name]
    with pytest.raises(ValueError, match=f"(?s){argument}.*Received"):
        call()


@pytest.mark.parametrize(
    "inputs",
    [PIXELS, IMAGES / 255.0, {"measurements": MEASURED, "noise_level": MEASURED}],
    ids=["integers", "size", "dict"],
)
def test_other_measurements_raise(model, inputs):
    for one in (model, model.backbone):
        with pytest.raises(ValueError, match="Received|expected shape"):
            one(inputs)


@pytest.mark.parametrize("value", [np.zeros((4, 4)), np.zeros((4, 4, 1))])
def test_psnr_of_other_shapes_raises(value):
    with pytest.raises(ValueError, match="y_true.*y_pred"):
        metrics.PeakSignalToNoiseRatio().update_state(value, value)
