"""Phases of a run, and regularizers that change within one."""

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
    return phase_spans(configs.resolve({**small, "phases": list(phases)}), 4)


def weights(spans):
    return [(span.epochs, span.phase.regularizer["weight"]) for span in spans]


def test_weight_rises_every_three_epochs(small):
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


def test_weight_does_not_rise_at_the_start_of_a_phase(small):
    small["model"]["regularizer"] = "contraction"
    (first,) = spans(small, {"epochs": 3, **RISING})
    assert weights([first]) == [(range(0, 3), 3.0)]
    _, *second = spans(small, {"epochs": 3}, {"epochs": 4, **RISING})
    assert weights(second) == [(range(3, 6), 3.0), (range(6, 7), 3.5)]


def test_phases_of_steps_end_with_a_short_epoch(small):
    """An epoch has four steps."""
    small["model"]["regularizer"] = "jacobian"
    first, second, *rising = spans(
        small, {"steps": 3}, {"epochs": 2}, {"steps": 13, **RISING}
    )
    assert (first.epochs, first.steps) == (range(0, 1), range(0, 3))
    assert (second.epochs, second.steps) == (range(1, 3), range(3, 11))
    assert [span.epochs for span in rising] == [range(3, 6), range(6, 7)]
    assert [span.steps for span in rising] == [range(11, 23), range(23, 24)]


RAMP = {"factor": [1.0, 3.0], "probability": [0.5, 1.0]}
JACOBIAN = {"class_name": "jacobian"}


@pytest.mark.parametrize(
    "phase, name",
    [
        ({**RISING}, "regularizer_weight_increment"),
        ({"regularizer_weight_increment": {"amount": 1}}, "every_epochs"),
        ({"regularizer": {**JACOBIAN, "wight": 1}}, "regularizer"),
        ({"regularizer": "jacobian", "regularizer_ramp": {}}, "regularizer_ramp"),
        ({"regularizer_ramp": {"factor": [1.0]}}, "regularizer_ramp.factor"),
        ({"regularizer_ramp": {"probability": [0, 2]}}, "regularizer_ramp.probability"),
        ({"regularizer_ramp": RAMP, **RISING}, "regularizer_ramp"),
        ({"regularizer_ramp": RAMP, "regularizer": None}, "regularizer_ramp"),
        ({"max_iter_jitter": 9999}, "max_iter_jitter"),
    ],
)
def test_invalid_phase_raises(small, phase, name):
    with pytest.raises(InputError, match=rf"`phases\.0\..*{name}"):
        check(RegressionJob.of(small, [{"epochs": 5, **phase}]))


def test_weight_rises_a_thousand_times_at_most(small):
    rising = {"every_epochs": 1, "amount": 1e-3}
    phase = {"regularizer": "jacobian", "regularizer_weight_increment": rising}
    with pytest.raises(InputError, match="regularizer_weight_increment.*Received"):
        spans(small, {"epochs": 1_000_000, **phase})
    assert len(spans(small, {"epochs": 1001, **phase})) == 1001


def test_phases_inherit_components_of_the_model(small):
    small["model"]["regularizer"] = "jacobian"
    first, second = spans(
        small,
        {"epochs": 2, "solver": {"class_name": "broyden", "max_iter": 6}},
        {"epochs": 3, "gradient": "implicit", "regularizer": None},
    )
    assert [first.epochs, second.epochs] == [range(0, 2), range(2, 5)]
    assert (first.phase.gradient, first.phase.regularizer) == ("phantom", "jacobian")
    assert second.phase.solver == small["model"]["solver"]
    assert (second.phase.gradient, second.phase.regularizer) == ("implicit", None)


class LoggingJob(RegressionJob):
    """A regression that logs the weight of its regularizer."""

    def make_callbacks(self, model):
        regularizer = model.get_layer("deq").regularizer
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(weight=regularizer.weight)
        )
        return [*super().make_callbacks(model), callback]


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
def test_resumed_run_has_the_weight_of_its_epoch(tmp_path, small, rising):
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
    np.testing.assert_equal(model.get_weights(), resumed.get_weights())


def test_negative_weight_raises_before_training(small, rising):
    rising[0]["regularizer_weight_increment"] = {"every_epochs": 1, "amount": -0.6}
    with pytest.raises(InputError, match="`phases.0.regularizer`: `weight`"):
        check(LoggingJob.of(small, rising))


@pytest.mark.slow
def test_resumed_ramp_equals_uninterrupted(tmp_path, small):
    small["model"]["regularizer"] = "jacobian"
    solver = {"class_name": "fixed_point_iteration", "max_iter": 3, "tol": None}
    small["model"]["solver"] = solver
    # The budget of the phase after the ramp differs, so that it is compiled.
    phases = [
        {"epochs": 1},
        {"epochs": 2, "regularizer_ramp": RAMP},
        {"epochs": 1, "max_iter_jitter": 1},
    ]
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    model, history = train(RegressionJob.of(small, phases), tmp_path / "whole")
    # The values of the last step of each epoch: steps 3 and 7 of 8.
    assert [row.get("deq_penalty_factor") for row in history] == [
        None,
        pytest.approx(1 + 2 * 3 / 8),
        pytest.approx(1 + 2 * 7 / 8),
        None,
    ]
    assert history[2]["deq_penalty_probability"] == pytest.approx(0.5 + 0.5 * 7 / 8)
    assert model.get_layer("deq").penalty_factor == 1.0
    with pytest.raises(Killed):
        train(RegressionJob.of(small, phases, dies_in=2), tmp_path / "parts")
    resumed, again = train(RegressionJob.of(small, phases), tmp_path / "parts")
    assert_same_histories(again, history)
    np.testing.assert_equal(model.get_weights(), resumed.get_weights())
