"""Learning rates of step decay, of an inverse square root and of plateaus."""

import keras
import numpy as np
import pytest

from tests.training.runs.small_runs import Killed, RegressionJob
from training.config import reading as configs
from training.config.fields import OptimizerConfig
from training.errors import InputError
from training.runs.job import Job
from training.runs.optimizers import build_optimizer
from training.runs.train import train


class ScoredJob(RegressionJob):
    """A linear regression with scores of our choice."""

    monitor = "score"
    build = Job.build  # With the optimizer of the config.

    def __init__(self, small, optimizer, scores, dies_in=None):
        phases = [{"epochs": 2}, {"epochs": len(scores) - 2}]
        changes = {"phases": phases, "optimizer": optimizer}
        super().__init__(configs.resolve({**small, **changes}), dies_in=dies_in)
        self.scores = scores
        self.rates = []

    def build_model(self):
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def equilibrium(self, model):
        return None

    def callbacks(self, model):
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=self._score,
            on_train_batch_end=lambda batch, logs: self.rates.append(
                float(model.optimizer.learning_rate)
            ),
        )
        return [*super().callbacks(model), callback]

    def _score(self, epoch, logs):
        if self.scores[epoch] is not None:  # Other epochs are not validated.
            logs["score"] = self.scores[epoch]


def _rates(small, folder, optimizer, scores, deaths=()):
    """Trains, also after deaths; returns the rates of all steps, and the model."""
    folder.mkdir()
    rates = []
    for dies_in in (*deaths, None):
        job = ScoredJob(small, optimizer, scores, dies_in)
        try:
            model, _ = train(job, folder)
        except Killed:
            pass
        rates += job.rates
    return np.array(rates), model


def test_a_plateau_lowers_the_rate_also_in_a_resumed_run(small, tmp_path):
    optimizer = {
        "learning_rate": 0.08,
        "schedule": "plateau",
        "decay_factor": 0.5,
        "patience": 2,
        "final_learning_rate": 0.03,
    }
    # Two epochs without progress in 1 and 3, in 5 and 6, and in 7 and 8.
    scores = [3.0, 3.0, None, 3.1, 2.0, 2.5, 2.5, 2.5, 2.5]
    expected = np.repeat([0.08] * 4 + [0.04] * 3 + [0.03] * 2, 4)
    whole, model = _rates(small, tmp_path / "whole", optimizer, scores)
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    parts, resumed = _rates(small, tmp_path / "parts", optimizer, scores, (1, 3, 6))
    np.testing.assert_allclose(parts, expected, rtol=1e-6)
    for one, other in zip(model.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_inverse_square_root_falls_from_the_end_of_the_warm_up(small, tmp_path):
    optimizer = {
        "learning_rate": 0.1,
        "schedule": "inverse_square_root",
        "warmup_epochs": 0.5,
    }
    rates, model = _rates(small, tmp_path / "run", optimizer, [1.0] * 3, (1,))
    steps = np.arange(2, 12)
    expected = [0.0, 0.05, *0.1 * np.sqrt(2 / steps)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    # Users need no class of ours to load the optimizer.
    loaded = keras.saving.load_model(tmp_path / "run" / "model.keras")
    np.testing.assert_allclose(loaded.optimizer.learning_rate, rates[-1], rtol=1e-6)


def test_step_decay():
    config = OptimizerConfig(
        learning_rate=0.1, schedule="step", decay_epochs=[1, 1.5], decay_factor=0.2
    )
    schedule = build_optimizer(config, 2, 4, "float32")._learning_rate
    rates = [float(schedule(step)) for step in range(8)]
    np.testing.assert_allclose(rates, [0.1] * 4 + [0.02] * 2 + [0.004] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"schedule": "step"}, "which needs it. Received: decay_epochs=None"),
        ({"decay_epochs": [1.0]}, "is for the schedule `step`"),
        ({"schedule": "step", "decay_epochs": [2.0, 1.0]}, "must ascend"),
        ({"schedule": "plateau", "warmup_epochs": 0.5}, "must be 0 with.*plateau"),
        ({"schedule": "inverse_square_root"}, "at least one step"),
    ],
)
def test_schedules_that_lack_an_argument_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        build_optimizer(OptimizerConfig(**arguments), 2, 10, "float32")
