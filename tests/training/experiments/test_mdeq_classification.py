"""The experiment `mdeq_classification`: starting weights and explicit networks."""

import copy

import keras
import numpy as np
import pytest

from tests.training.runs import small_runs
from training.config import reading as configs
from training.data import images as datasets
from training.errors import InputError
from training.experiments.classification.mdeq import build_explicit, build_mdeq

SMALL = {
    "experiment": "classification",
    "tensorboard": False,
    "data": {"batch_size": 24, "train_examples": 48, "test_examples": 20},
    "model": {
        "name": "mdeq",
        "filters": [8, 8],
        "head_filters": [2, 4],
        "final_filters": 16,
        "expansion": 1,
        "groups": 4,
        "num_downsamplings": 0,
        "dropout": 0.1,
        "solver": {"class_name": "anderson", "max_iter": 4},
        "gradient": "phantom",
        "regularizer": None,
    },
    "optimizer": {"learning_rate": 0.01},
    "phases": [{"epochs": 1}],
    "evaluation": {"budgets": [1, 4], "num_samples": 8, "max_iter": 5},
}


@pytest.fixture
def small():
    return copy.deepcopy(SMALL)


def _run(mapping, path):
    return small_runs.finished(path, configs.resolve(mapping))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run. Tests only read it."""
    mapping = {**copy.deepcopy(SMALL), "variants": {"mdeq": {}}}
    return _run(mapping, tmp_path_factory.mktemp("mdeq") / "run")


def _data(mapping):
    return datasets.load(configs.resolve(mapping).data)


@pytest.mark.slow
def test_starts_from_the_backbone_of_another(finished, small):
    path = str(finished.run("mdeq") / "model.keras")
    small["model"]["initial_weights"] = path
    small["model"]["head_filters"] = [4, 4]
    model = build_mdeq(configs.resolve(small).model, _data(small), "float32")
    expected = keras.models.load_model(path, compile=False).backbone.get_weights()
    np.testing.assert_equal(model.backbone.get_weights(), expected)


@pytest.mark.slow
def test_weights_of_another_model_are_refused(finished, small):
    small["model"]["initial_weights"] = str(finished.run("mdeq") / "model.keras")
    small["model"]["expansion"] = 2
    with pytest.raises(InputError, match="same backbone"):
        build_mdeq(configs.resolve(small).model, _data(small), "float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, num_parameters",
    [
        ({"network": "resnet_18"}, 11_175_370),
        ({"network": "densenet_121"}, 6_957_706),
        ({"network": "densenet_121", "filters": 4}, 156_340),
        ({"network": "resnet_8"}, 78_042),
    ],
)
def test_explicit_networks(small, network, num_parameters):
    small["model"]["explicit"] = {**network, "upsampling": 2}
    config = configs.resolve(small)
    data = _data(small)._replace(mean=(0.0,) * 3, standard_deviation=(1.0,) * 3)
    images = np.zeros((2, 16, 16, 3), "uint8")
    data = data._replace(training=datasets.in_memory(images, np.zeros(2, "int32")))
    model = build_explicit(config.model, data, "float32")
    trainable = sum(np.prod(weight.shape) for weight in model.trainable_weights)
    assert trainable == pytest.approx(num_parameters, rel=0.002)
    assert model.output_shape == (None, 10)
    normalizations = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    assert {layer.momentum for layer in normalizations} == {0.9}
    assert keras.config.dtype_policy().name == "float32"
