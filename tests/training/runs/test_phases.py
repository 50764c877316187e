import keras
import numpy as np
import pytest

from tests.training.runs.small_runs import (
    Killed,
    RegressionJob,
    assert_same_histories,
)
from training.config import reading as configs
from training.errors import InputError
from training.runs.phases import phase_spans
from training.runs.train import check, train

RISING = {"regularizer_weight_increment": {"every_epochs": 3, "amount": 0.5}}


def spans(small, *phases):
    return phase_spans(configs.resolve({**small, "phases": list(phases)}))


def weights(spans):
    return [(span.epochs, span.phase.regularizer["weight"]) for span in spans]


def test_the_weight_rises_after_every_so_many_epochs_of_the_run(small):
    small["model"]["regularizer"] = {
        "class_name": "jacobian",
        "weight": 2.0,
        "probability": 0.25,
    }
    pretraining, *equilibrium = spans(small, {"epochs": 2}, {"epochs": 5, **RISING})
    assert pretraining.epochs == range(0, 2)
    expected = [(range(2, 3), 2.0), (range(3, 6), 2.5), (range(6, 7), 3.0)]
    assert weights(equilibrium) == expected
    for span in equilibrium:
        assert span.path == "phases.1"
        assert span.phase.regularizer["probability"] == 0.25


def test_the_weight_does_not_rise_where_the_phase_begins(small):
    small["model"]["regularizer"] = "contraction"
    (first,) = spans(small, {"epochs": 3, **RISING})
    assert weights([first]) == [(range(0, 3), 3.0)]
    _, *second = spans(small, {"epochs": 3}, {"epochs": 4, **RISING})
    assert weights(second) == [(range(3, 6), 3.0), (range(6, 7), 3.5)]


@pytest.mark.parametrize(
    "phase, words",
    [
        ({**RISING}, r"`phases.0.regularizer_weight_increment` needs a regularizer"),
        (
            {**RISING, "regularizer": {"class_name": "jacobian", "wight": 1}},
            "`phases.0.regularizer`.*wight",
        ),
        ({"regularizer_weight_increment": {"every_epochs": 0, "amount": 1}}, ">= 1"),
        ({"regularizer_weight_increment": {"amount": 1}}, "every_epochs` is required"),
        (
            {"regularizer_weight_increment": {"every": 1, "amount": 1}},
            "Did you mean `phases.0.regularizer_weight_increment.every_epochs`",
        ),
    ],
)
def test_what_cannot_rise_is_refused(small, phase, words):
    with pytest.raises(InputError, match=words):
        spans(small, {"epochs": 5, **phase})


class LoggingJob(RegressionJob):
    """A regression that logs the weight of its regularizer."""

    def callbacks(self, model):
        regularizer = model.get_layer("deq").regularizer
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(weight=regularizer.weight)
        )
        return [*super().callbacks(model), callback]


@pytest.fixture
def rising(small):
    """The phases of weights 1, 1, 1.5 and 1.5; their budgets are drawn."""
    small["model"]["regularizer"] = "jacobian"
    small["model"]["solver"] = {
        "class_name": "fixed_point_iteration",
        "max_iter": 6,
        "tol": 0.0,
    }
    increment = {"every_epochs": 2, "amount": 0.5}
    phase = {"epochs": 4, "regularizer_weight_increment": increment}
    return [{**phase, "max_iter_jitter": 4}]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_right_weight(tmp_path, small, rising):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    model, history = train(LoggingJob.of(small, rising), tmp_path / "whole")
    assert [row["weight"] for row in history] == [1.0, 1.0, 1.5, 1.5]
    assert all(row["seconds"] > 0 for row in history)
    for epoch in (1, 3):
        with pytest.raises(Killed):
            train(LoggingJob.of(small, rising, dies_in=epoch), tmp_path / "parts")
    resumed, resumed_history = train(LoggingJob.of(small, rising), tmp_path / "parts")
    assert_same_histories(resumed_history, history)
    for one, other in zip(model.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_weight_that_falls_below_zero_is_refused_before_training(small, rising):
    rising[0]["regularizer_weight_increment"] = {"every_epochs": 1, "amount": -0.6}
    with pytest.raises(InputError, match="`phases.0.regularizer`: `weight`"):
        check(LoggingJob.of(small, rising))
