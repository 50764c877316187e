"""Configs of the published vision runs: what they say, and that their models train."""

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.training.runs.small_runs import take_step
from training.config import reading as configs
from training.data import images as datasets
from training.experiments.classification.job import ClassificationJob
from training.runs.optimizers import build_optimizer
from training.runs.phases import phase_spans
from training.runs.train import enter_phase

FOLDER = Path(__file__).parents[3] / "configs" / "mdeq"
IMAGENET = {
    "filters": [32, 64, 128, 256],
    "downsamplings": 2,
    "mode": "abs",
    "budgets": (26, 27),
    "epochs": 100,
    "pretraining": (51, 5),
    "batch": 128,
    "optimizer": "SGD",
    "rate": 0.05,
    "image_size": 224,
}
CIFAR = {
    "filters": [32, 64, 128, 256],
    "downsamplings": 0,
    "post_affine": False,
    "mode": "rel",
    "budgets": (18, 20),
    "epochs": 220,
    "pretraining": (51, 10),
    "batch": 128,
    "optimizer": "Adam",
    "rate": 1e-3,
    "image_size": 32,
}
LARGE = {"filters": [80, 160, 320, 640], "pretraining": (51, 4)}
REGULARIZED = {"post_affine": False, "budgets": (14, 14), "jitter": 2}
# The sizes of the models are those of the reference, weights and head included.
RUNS = {
    "cifar10_tiny": {
        **CIFAR,
        "filters": [24, 24],
        "dropout": 0.25,
        "epochs": 50,
        "pretraining": (8, 10),
        "decay": 2.5e-6,
        "parameters": 158_890,
    },
    "cifar10_large": {**CIFAR, "dropout": 0.3, "parameters": 11_097_438},
    "cifar10_large_regularized": {
        **CIFAR,
        "dropout": 0.22,
        "budgets": (8, 7),
        "jitter": 2,
        "batch": 96,
        "pretraining": (31, 8),
        "probability": 0.02,
        "weights": {30: None, 31: 0.4, 89: 0.4, 90: None, 219: None},
        "parameters": 11_097_438,
    },
    "imagenet_small": {**IMAGENET, "decay": 5e-4, "parameters": 16_808_936},
    "imagenet_small_regularized": {
        **IMAGENET,
        **REGULARIZED,
        "dropout": 0.02,
        "rate": 0.04,
        "decay": 2e-4,
        "probability": 0.08,
        "weights": {0: 0.03, 50: 0.03, 51: 2.5, 54: 2.5, 55: 2.6, 60: 2.7, 99: 3.4},
        "parameters": 18_613_496,
    },
    "imagenet_large": {**IMAGENET, **LARGE, "decay": 1e-3, "parameters": 67_063_624},
    "imagenet_large_regularized": {
        **IMAGENET,
        **LARGE,
        **REGULARIZED,
        "decay": 1e-3,
        "probability": 0.08,
        "weights": {0: 0.03, 51: 3.0, 55: 3.1, 99: 3.9},
        "parameters": 67_061_224,
    },
    "imagenet_xl": {
        **IMAGENET,
        **LARGE,
        "filters": [88, 176, 352, 704],
        "batch": 256,
        "decay": 1e-3,
        "parameters": 90_463_280,
    },
}

each_run = pytest.mark.parametrize("name", RUNS)


def load(name, *overrides):
    return configs.load(FOLDER / f"{name}.yaml", overrides)


@each_run
class TestWhatItSays:
    def test_model(self, name):
        run, model = RUNS[name], load(name).model
        assert model.filters == run["filters"]
        assert model.num_downsamplings == run["downsamplings"]
        assert model.post_affine == run.get("post_affine", True)
        assert model.dropout == run.get("dropout", 0)
        assert (model.groups, model.weight_normalization) == (8, True)
        assert model.expansion == (6 if name == "imagenet_xl" else 5)

    def test_equilibrium(self, name):
        run, config = RUNS[name], load(name)
        solver = config.model.solver
        adjoint = config.model.gradient["solver"]
        assert config.model.gradient["class_name"] == "implicit"
        assert (solver["max_iter"], adjoint["max_iter"]) == run["budgets"]
        pretraining, *others = phase_spans(config)
        assert pretraining.phase.max_iter_jitter == 0
        for span in others:
            assert span.phase.max_iter_jitter == run.get("jitter", 0)
        for each in (solver, adjoint):
            assert each["class_name"] == "broyden"
            assert each.get("stop_mode", "rel") == run["mode"]
            tol = 1e-3 if run["mode"] == "rel" else 1e-3 / 32**0.5
            assert each["tol"] == pytest.approx(tol, rel=0.03)

    def test_phases(self, name):
        run, spans = RUNS[name], phase_spans(load(name))
        num_epochs, num_layers = run["pretraining"]
        assert spans[0].epochs == range(num_epochs)
        assert spans[0].phase.solver["max_iter"] == num_layers
        assert spans[0].phase.solver["tol"] is None
        assert spans[0].phase.gradient == "unrolled"
        assert spans[-1].epochs.stop == run["epochs"]

    def test_weights(self, name):
        run = RUNS[name]
        found = {
            epoch: span.phase.regularizer
            for span in phase_spans(load(name))
            for epoch in span.epochs
        }
        if "weights" not in run:
            assert set(found.values()) == {None}
            return
        for epoch, weight in run["weights"].items():
            if weight is None:
                assert found[epoch] is None
                continue
            assert found[epoch]["weight"] == pytest.approx(weight)
            assert found[epoch]["probability"] == run["probability"]
            assert found[epoch]["num_probes"] == 2

    def test_optimizer(self, name):
        run, config = RUNS[name], load(name)
        steps = run["epochs"] * 10
        optimizer = build_optimizer(config.optimizer, run["epochs"], 10, "float32")
        assert type(optimizer).__name__ == run["optimizer"]
        assert optimizer.weight_decay == run.get("decay")
        rate = optimizer._learning_rate
        assert float(rate(0)) == pytest.approx(run["rate"])
        assert float(rate(steps)) == pytest.approx(1e-6, rel=1e-3)
        if run["optimizer"] == "SGD":
            assert (optimizer.momentum, optimizer.nesterov) == (0.9, True)

    def test_data(self, name):
        run, config = RUNS[name], load(name)
        data = config.data
        assert data.name == ("imagenet2012" if run["image_size"] == 224 else "cifar10")
        assert data.batch_size == run["batch"]
        assert data.augmentation.horizontal_flip == (name != "cifar10_tiny")
        assert data.augmentation.resized_crop == (run["image_size"] == 224)
        assert config.seed == 42


def take_steps(config, size, num_classes):
    """Takes a step of pretraining and one of the equilibrium; returns the model."""
    keras.utils.set_random_seed(0)
    images = np.random.RandomState(0).randint(0, 256, (2, size, size, 3), "uint8")
    labels = np.array([1, num_classes - 1], "int32")
    split = datasets.in_memory(images, labels)
    data = datasets.ImageData(
        split, split, split, num_classes, (124.0, 116.0, 104.0), (58.0, 57.0, 57.0)
    )
    job = ClassificationJob(config, lambda: data)
    model, optimizer, spans = job.build()
    inputs = model.preprocessor(images)
    for span in spans[:2]:
        enter_phase(job, model, span, optimizer)
        logs = take_step(model, inputs, labels)
        assert 1 <= logs["deq_evaluations"] <= span.phase.solver["max_iter"]
    return model


@pytest.mark.large
@pytest.mark.slow
@each_run
def test_trains_at_full_size(name):
    run = RUNS[name]
    num_classes = 1000 if run["image_size"] == 224 else 10
    # ImageNet's crops are smaller here: the scales still halve them four times.
    size = 64 if run["image_size"] == 224 else 32
    model = take_steps(load(name), size, num_classes)
    trainable = sum(np.prod(weight.shape) for weight in model.trainable_weights)
    assert trainable == run["parameters"]
