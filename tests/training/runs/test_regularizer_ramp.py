"""A penalty whose weight and probability change with every step of a phase."""

import numpy as np
import pytest

from tests.training.runs.small_runs import (
    Killed,
    RegressionJob,
    assert_same_histories,
)
from training.errors import InputError
from training.runs.train import check, train

RAMP = {"factor": [1.0, 3.0], "probability": [0.5, 1.0]}


@pytest.mark.slow
def test_a_resumed_ramp_equals_an_uninterrupted_one(tmp_path, small):
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
    for one, other in zip(model.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "phase, words",
    [
        ({"regularizer_ramp": {}}, "must have a factor"),
        ({"regularizer_ramp": {"factor": [1.0]}}, "`phases.0.regularizer_ramp.factor`"),
        ({"regularizer_ramp": {"factor": [-1.0, 1.0]}}, "a number >= 0"),
        ({"regularizer_ramp": {"probability": [0.0, 1.5]}}, "<= 1"),
        (
            {
                "regularizer_ramp": RAMP,
                "regularizer_weight_increment": {"every_epochs": 1, "amount": 1},
            },
            "Set one of them to null",
        ),
        (
            {"regularizer_ramp": RAMP, "regularizer": None},
            "`phases.0.regularizer_ramp`.*needs a layer with a regularizer",
        ),
    ],
)
def test_ramps_that_change_nothing_or_too_much_are_refused(small, phase, words):
    with pytest.raises(InputError, match=words):
        check(RegressionJob.of(small, [{"epochs": 1, **phase}]))
