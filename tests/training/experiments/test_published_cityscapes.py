"""The published Cityscapes configs: what they say, and that their models train."""

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.training.runs.small_runs import take_step
from training.config import reading as configs
from training.data.segmentation import SegmentationData, cityscapes, shapes
from training.experiments.mdeq_segmentation.build import build_loss
from training.experiments.mdeq_segmentation.job import MDEQSegmentationJob
from training.runs.optimizers import build_optimizer
from training.runs.phases import phase_spans
from training.runs.train import enter_phase

FOLDER = Path(__file__).parents[3] / "configs" / "mdeq"
RUNS = {
    "small": {
        "filters": [32, 64, 128, 256],
        "expansion": 5,
        "dropout": 0.05,
        "crop": [512, 1024],
        "gpus": (3, 4),
        "decay": 2e-4,
        "pretraining": 60_000,
    },
    "large": {
        "filters": [80, 160, 320, 640],
        "expansion": 5,
        "dropout": 0.03,
        "crop": [512, 1024],
        "gpus": (3, 4),
        "decay": 3e-4,
        "pretraining": 60_000,
    },
    "xl": {
        "filters": [88, 176, 352, 704],
        "expansion": 6,
        "dropout": 0.04,
        "crop": [768, 1024],
        "gpus": (2, 8),
        "decay": 3e-4,
        "pretraining": 40_000,
    },
}
NUM_IMAGES = 2975

each_run = pytest.mark.parametrize("name", RUNS)


def load(name, *overrides):
    return configs.load(FOLDER / f"cityscapes_{name}.yaml", overrides)


def steps(name):
    return NUM_IMAGES // int(np.prod(RUNS[name]["gpus"]))


@each_run
class TestWhatItSays:
    def test_model(self, name):
        run, model = RUNS[name], load(name).model
        assert (model.filters, model.expansion) == (run["filters"], run["expansion"])
        assert (model.dropout, model.groups) == (run["dropout"], 8)
        assert (model.num_downsamplings, model.kernel_size) == (2, 1)
        assert model.batch_norm_momentum == 0.99
        assert model.weight_normalization and model.post_affine
        assert model.regularizer is None

    def test_equilibrium(self, name):
        pretraining, equilibrium = phase_spans(load(name))
        solver, gradient = equilibrium.phase.solver, equilibrium.phase.gradient
        adjoint = gradient["solver"]
        assert (solver["max_iter"], adjoint["max_iter"]) == (27, 30)
        assert gradient["class_name"] == "implicit"
        for each in (solver, adjoint):
            assert (each["class_name"], each["stop_mode"]) == ("broyden", "abs")
            expected = 1e-3 / RUNS[name]["gpus"][0] ** 0.5
            assert each["tol"] == pytest.approx(expected, rel=0.01)
        assert pretraining.phase.gradient == "unrolled"
        assert pretraining.phase.solver == {
            "class_name": "fixed_point_iteration",
            "max_iter": 3,
            "tol": None,
        }
        difference = pretraining.epochs.stop * steps(name) - RUNS[name]["pretraining"]
        assert abs(difference) <= steps(name) / 2
        assert equilibrium.epochs.stop == 500

    def test_data(self, name):
        data = load(name).data
        assert (data.name, data.crop_size) == ("cityscapes", RUNS[name]["crop"])
        assert data.batch_size == np.prod(RUNS[name]["gpus"])
        assert data.augmentation.random_scale and data.augmentation.horizontal_flip

    def test_loss(self, name):
        config = load(name)
        assert config.ohem is None
        weights = config.class_weights
        assert (len(weights), weights[0], weights[-1]) == (19, 0.8373, 1.0507)

    def test_optimizer(self, name):
        optimizer = build_optimizer(load(name).optimizer, 500, steps(name), "float32")
        assert type(optimizer) is keras.optimizers.SGD
        assert (optimizer.momentum, optimizer.nesterov) == (0.9, False)
        assert optimizer.weight_decay == pytest.approx(10 * RUNS[name]["decay"])
        total = 500 * steps(name)
        for step in (0, total // 3, total - 1):
            expected = 0.01 * (1 - step / total) ** 0.9
            assert float(optimizer._learning_rate(step)) == pytest.approx(
                expected, rel=1e-3, abs=1e-8
            )


@pytest.mark.large
@pytest.mark.slow
@each_run
def test_trains_at_full_size(name, tmp_path):
    """One step of each phase, on a small crop."""
    config = load(name, "data.batch_size=1", "data.crop_size=[64, 64]")
    training, test = shapes.load((64, 128), 1, 1)
    data = SegmentationData(
        training=training,
        validation=test,
        test=test,
        classes=cityscapes.CLASSES,
        image_size=(64, 128),
        crop_size=(64, 64),
        mean=cityscapes.MEAN,
        standard_deviation=cityscapes.STANDARD_DEVIATION,
    )
    job = MDEQSegmentationJob(config, lambda: data, tmp_path)
    model, optimizer, spans = job.build()
    images = np.random.default_rng(0).normal(size=(1, 64, 64, 3)).astype("float32")
    labels = np.arange(64 * 64).reshape(1, 64, 64) % 20
    labels = np.where(labels == 19, 255, labels).astype("int32")
    for span in spans:
        enter_phase(job, model, span, optimizer)
        # Dropout draws other masks in the step.
        logits = model(images, training=True)
        expected = float(build_loss(config, data)(labels, logits))
        logs = take_step(model, images, labels)
        assert logs["loss"] == pytest.approx(expected, rel=0.01)
