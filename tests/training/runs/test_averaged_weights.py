"""Saved models hold averaged weights; the best one has the score of its epoch."""

import keras
import numpy as np
import pytest

from training.config import reading as configs
from training.experiments.classification.job import ClassificationJob
from training.runs.train import compile_model, train

MOMENTUM = 0.8


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two phases of steps that differ: its job, folder, model and history, and
    the weights after each step."""
    from tests.training.conftest import SMALL

    config = configs.resolve(
        {
            **SMALL,
            "optimizer": {
                "name": "sgd",
                "schedule": "constant",
                "learning_rate": 0.05,
                "ema_momentum": MOMENTUM,
            },
            "phases": [{"epochs": 1}, {"epochs": 1}],
        }
    )
    job = ClassificationJob(config)
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([np.array(v) for v in self.model.trainable_variables])

    job.make_callbacks = lambda model: [Seen()]
    folder = tmp_path_factory.mktemp("averaged")
    return job, folder, *train(job, folder), seen


@pytest.mark.slow
def test_saved_models_are_averages(run):
    """The second phase begins at the averages of the first, and continues them."""
    _, _, model, _, seen = run
    average = seen[0]
    for values in seen[1:]:
        pairs = zip(average, values, strict=True)
        average = [MOMENTUM * old + (1 - MOMENTUM) * new for old, new in pairs]
    for variable, expected in zip(model.trainable_variables, average, strict=True):
        np.testing.assert_allclose(variable, expected, atol=1e-6)
    last = zip(seen[-1], average, strict=True)
    assert max(np.abs(a - b).max() for a, b in last) > 1e-4


@pytest.mark.slow
def test_best_model_has_the_score_of_its_epoch(run):
    job, folder, _, history, _ = run
    best = keras.saving.load_model(folder / "best.keras")
    compile_model(job, best, keras.optimizers.SGD())
    data = job.feed.fit_arguments(range(1))["validation_data"]
    score = best.evaluate(data, return_dict=True, verbose=0)["loss"]
    row = max(history, key=lambda row: row[job.monitor])
    np.testing.assert_allclose(score, row["val_loss"], rtol=1e-5)
