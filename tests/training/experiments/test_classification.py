"""Classifiers of images: one scale and monotone networks."""

import numpy as np
import pytest

from deq_keras.diagnostics import split_model
from training.config import reading as configs
from training.data import images as datasets
from training.data.images import digits
from training.experiments.classification.build import build_single_scale
from training.experiments.classification.job import ClassificationJob
from training.runs.train import build, enter_phase


def build_classifier(small):
    config = configs.resolve(small)
    data = datasets.load(config.data)
    return build_single_scale(config.model, data, config.precision)


def test_model_takes_raw_pixels(small):
    model = build_classifier(small)
    normalized = model.get_layer("normalization")(digits.load()[0].images)
    assert np.mean(normalized) == pytest.approx(0, abs=1e-4)
    assert np.std(normalized) == pytest.approx(1, abs=1e-3)
    assert model(np.zeros((3, 8, 8, 1))).shape == (3, 10)


@pytest.mark.parametrize(
    ("precision", "compute", "variable", "logits"),
    [
        ("mixed_bfloat16", "bfloat16", "float32", "float32"),
        ("float64", "float64", "float64", "float64"),
    ],
)
def test_precision_reaches_the_cell(small, precision, compute, variable, logits):
    small["precision"] = precision
    model = build_classifier(small)
    cell = split_model(model).layer.cell
    assert cell.conv1.compute_dtype == compute
    assert {weight.dtype for weight in cell.weights} == {variable}
    assert model(np.zeros((1, 8, 8, 1))).dtype == logits


@pytest.mark.slow
def test_phases_keep_the_optimizer_and_its_loss_scale(small):
    small["precision"] = "mixed_float16"
    small["phases"] = [{"epochs": 1, "gradient": "implicit"}, {"epochs": 1}]
    config = configs.resolve(small)
    job = ClassificationJob(config)
    model, optimizer, spans = build(job)
    training = job.data.training
    images, labels = training.images[:16], training.labels[:16]
    for step, span in enumerate(spans, start=1):
        enter_phase(job, model, span, optimizer)
        loss = model.train_on_batch(images.astype("float32"), labels)
        assert np.all(np.isfinite(loss))
        assert model.optimizer is optimizer
        assert int(optimizer.inner_optimizer.iterations) == step
    assert type(split_model(model).layer.gradient).__name__ == "PhantomGradient"
