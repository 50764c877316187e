"""The test suite in the wheel of KerasHub, on the models of this package."""

import sys
import types

import keras
import keras_hub
import numpy as np
import pytest

from deq_keras import layers, models, tokenizers
from tests.harness import ALWAYS_EAGER
from tests.regimes import slow


def _test_case():
    """Returns the suite as a class. Its module imports Grain, which is optional."""
    if "grain" in sys.modules:
        from keras_hub.src.tests.test_case import TestCase

        return TestCase
    sys.modules["grain"] = types.ModuleType("grain")
    try:
        from keras_hub.src.tests.test_case import TestCase
    finally:
        del sys.modules["grain"]
    TestCase.run_grain_preprocessing_test = lambda *args: None
    return TestCase


_SOLVER = {"class_name": "FixedPointIteration", "max_iter": 2}
_RANDOM = np.random.default_rng(0)
TOKENS = _RANDOM.integers(0, 20, (2, 5)).astype("int32")
TEXTS = ["abc de", "fg"]
VOCABULARY = [" ", *"abcdefghijklmnopqrs"]
IMAGES = _RANDOM.normal(size=(2, 8, 8, 3)).astype("float32")
PIXELS = _RANDOM.integers(0, 255, (2, 8, 8, 3)).astype("uint8")
CONVERTER = models.MDEQImageConverter.for_dataset("cifar10", image_size=(8, 8))
STRINGS = _RANDOM.normal(size=(2, 5, 3)).astype("float32")

_TRANSFORMER = {
    "vocabulary_size": 20,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 8,
}
_TRELLIS = {"vocabulary_size": 20, "hidden_dim": 8, "intermediate_dim": 8}
_DROPOUT = {"weight_dropout": 0.1, "token_dropout": 0.1, "hidden_dropout": 0.1}
_CLASSES = {
    "deq_transformer": (
        models.DEQTransformerBackbone,
        {**_TRANSFORMER, "solver": _SOLVER, "weight_normalization": False},
    ),
    "started_transformer": (
        models.DEQTransformerBackbone,
        {**_TRANSFORMER, "solver": _SOLVER, "num_explicit_layers": 2},
    ),
    "explicit_transformer": (
        models.ExplicitTransformerBackbone,
        {**_TRANSFORMER, "num_layers": 2},
    ),
    "transformer_xl": (
        models.TransformerXLBackbone,
        {**_TRANSFORMER, "num_layers": 2, "cutoffs": (5,), "div_val": 2},
    ),
    "deq_trellisnet": (
        models.DEQTrellisNetBackbone,
        {**_TRELLIS, **_DROPOUT, "solver": _SOLVER},
    ),
    "trellisnet": (
        models.TrellisNetBackbone,
        {**_TRELLIS, "num_layers": 2, "auxiliary_frequency": 1},
    ),
    "reasoner": (models.ReasonerBackbone, {"input_size": (None, 3)}),
    "image_restorer": (models.ImageRestorerBackbone, {"solver": _SOLVER}),
    "mdeq": (
        models.MDEQBackbone,
        {
            "filters": (4, 4),
            "expansion": 1,
            "groups": 2,
            "num_downsamplings": 0,
            "solver": _SOLVER,
            "image_shape": (8, 8, 3),
        },
    ),
}
LANGUAGE = [
    slow("deq_transformer"),
    slow("started_transformer"),
    "explicit_transformer",
    slow("transformer_xl"),
    slow("deq_trellisnet"),
]


def _arguments(name):
    cls, kwargs = _CLASSES[name]
    if name == "image_restorer":
        denoiser = layers.ImageDenoiser(4, 2)
        operator = layers.Blur(np.ones((3, 3)) / 9, (8, 8, 3))
        kwargs = {**kwargs, "cell": layers.ProximalGradientCell(operator, denoiser)}
    if name == "reasoner":
        cell = layers.RecallCell(4, rank=1, name="cell")
        kwargs = {**kwargs, "cell": cell, "solver": _SOLVER, "gradient": "phantom"}
    return cls, dict(kwargs)


def _backbone(name):
    cls, kwargs = _arguments(name)
    return cls(**kwargs)


def _inputs(name):
    images = {"mdeq": IMAGES, "image_restorer": IMAGES}
    return {"reasoner": STRINGS, **images}.get(name, TOKENS)


@pytest.fixture
def suite(monkeypatch):
    """The suite, which calls `fit` and `predict` many times, without their graphs."""
    monkeypatch.setattr(keras.Model, "run_eagerly", ALWAYS_EAGER)
    return _test_case()()


@pytest.mark.parametrize("name", [*LANGUAGE, "trellisnet", "reasoner"])
def test_backbone(suite, name):
    cls, kwargs = _arguments(name)
    inputs = _inputs(name)
    suite.run_backbone_test(
        cls,
        kwargs,
        inputs,
        expected_output_shape=(2, 5, 4 if name == "reasoner" else 8),
    )


@pytest.mark.slow
def test_mdeq_backbone(suite):
    """`run_backbone_test` expects a single output."""
    cls, kwargs = _arguments("mdeq")
    suite.run_serialization_test(cls(**kwargs))
    suite.run_precision_test(cls, kwargs, IMAGES)
    suite.run_quantization_test(cls(**kwargs), cls, kwargs, IMAGES)


@pytest.mark.slow
# Older versions of KerasHub pass an argument of `save` that Keras has deprecated.
@pytest.mark.filterwarnings("ignore:.*save_format")
@pytest.mark.parametrize("name", sorted(_CLASSES))
def test_backbone_saves(suite, name):
    suite.run_model_saving_test(*_arguments(name), _inputs(name))


def _alphabet():
    return tokenizers.CharacterTokenizer(VOCABULARY)


TASKS = {
    "deq_transformer": models.DEQTransformerCausalLM,
    "started_transformer": models.DEQTransformerCausalLM,
    "explicit_transformer": models.ExplicitTransformerCausalLM,
    "transformer_xl": models.TransformerXLCausalLM,
    "deq_trellisnet": models.DEQTrellisNetCausalLM,
    "trellisnet": models.TrellisNetCausalLM,
}


@pytest.mark.parametrize("name", [*LANGUAGE, slow("trellisnet")])
def test_language_task(suite, name, monkeypatch):
    preprocessor = models.DEQTransformerCausalLMPreprocessor(
        _alphabet(), sequence_length=8
    )
    # The padding mask is optional, so the functional model takes the tokens alone.
    monkeypatch.setattr(keras.tree, "assert_same_structure", lambda *_, **__: None)
    with pytest.warns(match="shuffle"):
        suite.run_task_test(
            TASKS[name],
            {"backbone": _backbone(name), "preprocessor": preprocessor},
            (TEXTS,),
            expected_output_shape=(2, 8, 20),
        )


@keras.saving.register_keras_serializable(package="tests")
class Unchanged(keras_hub.models.Preprocessor):
    def call(self, x, y=None, sample_weight=None):
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


# Class, backbone, preprocessor, other arguments, data, shape of the outputs.
IMAGE_TASKS = [
    (
        models.MDEQImageClassifier,
        "mdeq",
        models.MDEQImageClassifierPreprocessor(CONVERTER),
        {"num_classes": 3, "head_filters": (2, 4), "final_filters": 8},
        (PIXELS, np.array([0, 2])),
        (2, 3),
    ),
    (
        models.MDEQImageSegmenter,
        "mdeq",
        models.MDEQImageSegmenterPreprocessor(CONVERTER),
        {"num_classes": 3},
        (PIXELS, np.zeros((2, 8, 8), "int32")),
        (2, 8, 8, 3),
    ),
    (
        models.ImageRestorer,
        "image_restorer",
        models.ImageRestorerPreprocessor((8, 8, 3), (8, 8, 3)),
        {},
        (PIXELS, PIXELS),
        (2, 8, 8, 3),
    ),
]
REASONER = (
    models.ReasonerTagger,
    "reasoner",
    Unchanged(),
    {"num_classes": 3},
    (STRINGS, np.zeros((2, 5), "int32")),
    (2, 5, 3),
)


# KerasHub passes an argument that Keras has deprecated.
@pytest.mark.filterwarnings("ignore:The `check_types` argument")
@pytest.mark.parametrize(
    "cls, name, preprocessor, kwargs, data, shape",
    [slow(*task) for task in (REASONER, *IMAGE_TASKS)],
)
def test_task(suite, cls, name, preprocessor, kwargs, data, shape):
    parts = {"backbone": _backbone(name), "preprocessor": preprocessor}
    with pytest.warns(match="shuffle"):
        suite.run_task_test(cls, {**parts, **kwargs}, data, expected_output_shape=shape)


@pytest.mark.parametrize(
    "cls, kwargs, inputs",
    [
        (tokenizers.CharacterTokenizer, {"vocabulary": VOCABULARY}, TEXTS),
        (models.MDEQImageConverter, {"image_size": (8, 8), "scale": 1 / 255}, PIXELS),
        (
            models.MDEQImageClassifierPreprocessor,
            {"image_converter": CONVERTER},
            (PIXELS, np.array([0, 2])),
        ),
        (
            models.MDEQImageSegmenterPreprocessor,
            {"image_converter": CONVERTER},
            (PIXELS, np.zeros((2, 8, 8, 1), "int32")),
        ),
        (
            models.ImageRestorerPreprocessor,
            {"measurement_shape": (8, 8, 3), "image_shape": (8, 8, 3)},
            (PIXELS, PIXELS),
        ),
    ],
)
def test_preprocessing_layer(suite, cls, kwargs, inputs):
    suite.run_preprocessing_layer_test(cls, kwargs, inputs)


@pytest.mark.slow
def test_trained_preset(suite):
    suite.run_preset_test(
        models.DEQTransformerBackbone, "characters", TOKENS, {}, None, (2, 5, 128)
    )
