"""The experiment `mdeq_segmentation`: scores, exports and starting weights."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models
from tests.training.runs import small_runs
from training.cli import main
from training.config import reading as configs
from training.data import segmentation
from training.experiments.mdeq_segmentation.job import build_loss, build_segmenter
from training.runs import variants
from training.runs.train import compile_model

SMALL = {
    "experiment": "mdeq_segmentation",
    "tensorboard": False,
    "data": {
        "image_size": [16, 32],
        "crop_size": [16, 16],
        "batch_size": 2,
        "evaluation_batch_size": 2,
        "train_examples": 4,
        "test_examples": 3,
        "validation_examples": 2,
        "augmentation": {"random_scale": True, "horizontal_flip": True},
    },
    "model": {
        "filters": [8, 16],
        "expansion": 1,
        "num_downsamplings": 1,
        "dropout": 0.1,
        "batch_norm_momentum": 0.5,
        "solver": {"class_name": "fixed_point_iteration", "max_iter": 3},
        "gradient": "neumann",
        "regularizer": None,
    },
    "class_weights": [0.5, 1.0, 1.0, 1.5],
    "optimizer": {"learning_rate": 0.01},
    "phases": [{"epochs": 1}],
    "evaluation": {
        "budgets": [1, 3],
        "num_samples": 2,
        "max_iter": 4,
        "num_overlays": 1,
    },
}


@pytest.fixture
def small():
    return copy.deepcopy(SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The work directory of a model trained for two steps. Tests only read it."""
    path = tmp_path_factory.mktemp("segmentation") / "run"
    return small_runs.finished(path, configs.resolve(copy.deepcopy(SMALL)))


@pytest.fixture(scope="module")
def trained(finished):
    """Its job and its model."""
    job = variants.make_jobs(finished, ["model"])["model"]
    path = finished.run("model") / "model.keras"
    return job, keras.models.load_model(path, compile=False)


def rows(directory):
    return small_runs.evaluation(directory.run("model"))["budgets"]


@pytest.mark.slow
def test_the_trained_budget_scores_as_keras(finished, trained):
    job, model = trained
    overlays = {file.name for file in (finished.run("model") / "overlays").iterdir()}
    assert overlays == {"000-labels.png", "000-predicted.png"}
    compile_model(job, model, keras.optimizers.SGD())
    result = model.evaluate(
        segmentation.evaluation_batches(job.data.test, 3), return_dict=True, verbose=0
    )
    assert result["mean_iou"] == pytest.approx(rows(finished)[1]["mean_iou"], rel=1e-5)


@pytest.mark.slow
def test_export_takes_raw_images_of_any_size(finished, trained, tmp_path):
    _, model = trained
    arguments = ["export", str(finished.path), "--out", str(tmp_path / "exported")]
    assert main(arguments) == 0
    exported = tf.saved_model.load(tmp_path / "exported")
    for size in ((16, 32), (8, 12)):
        pixels = np.random.default_rng(0).uniform(0, 255, (1, *size, 3))
        pixels = pixels.astype("float32")
        logits = exported.serve(pixels)["outputs"]
        assert logits.shape == (1, *size, 4)
        expected = model(model.preprocessor(pixels), training=False)
        np.testing.assert_allclose(logits, expected, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "classifier"])
def test_starts_from_another_model(kind, finished, trained, small, tmp_path):
    job, donor = trained
    path = finished.run("model") / "model.keras"
    if kind == "classifier":
        donor = models.MDEQImageClassifier(donor.backbone, 5, (8, 16), 8)
        path = tmp_path / "classifier.keras"
        donor.save(path)
    small["model"]["initial_weights"] = str(path)
    model = build_segmenter(configs.resolve(small), job.data)
    np.testing.assert_equal(model.backbone.get_weights(), donor.backbone.get_weights())


@pytest.mark.slow
def test_hard_examples_reach_the_loss(small):
    config = configs.resolve(small, [("ohem", {"keep": 7})])
    loss = build_loss(config, segmentation.load(config.data))
    assert (loss.threshold, loss.keep) == (0.9, 7)
    assert loss.class_weights == SMALL["class_weights"]
