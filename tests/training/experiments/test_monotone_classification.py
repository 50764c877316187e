from pathlib import Path

import keras
import numpy as np
import pytest

from deq_keras import models
from tests.training.runs import small_runs
from training.cli import main
from training.config import reading as configs
from training.data import images as datasets
from training.errors import InputError
from training.evaluation import report
from training.experiments.classification.build import build_monotone
from training.experiments.classification.job import ClassificationJob

FOLDER = Path(__file__).parents[3] / "configs" / "monotone"
SMALL = {
    "experiment": "classification",
    "tensorboard": False,
    "data": {"batch_size": 24, "train_examples": 48, "test_examples": 20},
    "model": {
        "name": "monotone",
        "cell": {"class_name": "monotone_dense_cell", "units": 8},
    },
    "phases": [{"epochs": 1}],
    "evaluation": {"budgets": [1, 4], "num_samples": 8, "max_iter": 5},
}


def _data(mapping):
    return datasets.load(configs.resolve(mapping).data)


@pytest.mark.slow
def test_a_run_from_the_config_to_the_table(tmp_path):
    directory = small_runs.finished(tmp_path / "run", configs.resolve(SMALL))
    model = keras.models.load_model(directory.run("model") / "model.keras")
    assert isinstance(model, models.MonotoneClassifier)
    assert (directory.run("model") / "evaluation.json").exists()
    (row,) = report.histories(directory)["model"]
    assert 0 < float(row["deq_spectral_radius"]) and 0 < float(row["deq_jacobian_norm"])
    audit = ["audit", str(directory.path), "--out", str(tmp_path / "audit.json")]
    assert main([*audit, "--budgets", "1", "10"]) == 0
    assert (tmp_path / "audit.json").exists()


@pytest.mark.parametrize(
    "cell, message",
    [
        ({"class_name": "monotone_dense_cell"}, "model.cell.*units"),
        ({"class_name": "monotone_dense_cell", "units": 4, "m": 0}, "`m` must be"),
        ({"class_name": "monotone_conv_cell", "filters": 2, "size": 3}, "size"),
        ({"class_name": "monotone_multiscale_cell", "filters": [2] * 5}, "multiples"),
    ],
)
def test_what_the_model_refuses_is_named(cell, message):
    mapping = {**SMALL, "model": {"name": "monotone", "cell": cell}}
    config = configs.resolve(mapping)
    with pytest.raises(InputError, match=message):
        build_monotone(config.model, _data(mapping), "float32")


def test_other_cells_are_refused():
    with pytest.raises(InputError, match="monotone_dense_cell"):
        configs.resolve(
            {**SMALL, "model": {"name": "monotone", "cell": "residual_block_cell"}}
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, image_size, parameters",
    [
        ("cifar10_conv", (32, 32, 3), 172_218),
        ("cifar10_multiscale", (32, 32, 3), 170_194),
        ("digits", (8, 8, 1), 64 * 87 + 87 + 2 * 87**2 + 870 + 10),
    ],
)
def test_published_sizes_take_a_step(name, image_size, parameters):
    config = configs.load(FOLDER / f"{name}.yaml")
    images = np.random.default_rng(0).integers(0, 255, (2, *image_size), "uint8")
    data = _data(SMALL)._replace(
        mean=(120.0,) * image_size[-1], standard_deviation=(60.0,) * image_size[-1]
    )
    model = build_monotone(config.model, _Images(data, image_size), config.precision)
    assert model.count_params() == parameters
    ClassificationJob(config, data, None).compile(model, keras.optimizers.Adam(1e-3))
    before = model.get_weights()
    loss = model.train_on_batch(images, np.array([1, 2]))
    assert np.all(np.isfinite(loss))
    assert all(np.all(np.isfinite(weight)) for weight in model.get_weights())
    assert any(np.any(a != b) for a, b in zip(before, model.get_weights()))


class _Images:
    """Image data of another size."""

    def __init__(self, data, image_shape):
        self.image_shape = image_shape
        self.num_classes = data.num_classes
        self.mean = data.mean
        self.standard_deviation = data.standard_deviation


@pytest.mark.slow
def test_the_large_network_has_its_published_size():
    config = configs.load(FOLDER / "cifar10_multiscale_large.yaml")
    data = _data(SMALL)._replace(mean=(120.0,) * 3, standard_deviation=(60.0,) * 3)
    images = _Images(data, (32, 32, 3))
    model = build_monotone(config.model, images, config.precision)
    assert model.count_params() == 1_014_546
