"""Phases of a run, and regularizers that change within one."""

import pytest

from tests.training.runs.small_runs import RegressionJob
from training.config import reading as configs
from training.errors import InputError
from training.runs.phases import phase_spans
from training.runs.train import check

FALLING = {"regularizer_weight_increment": {"every_epochs": 1, "amount": -0.6}}
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
        ({"regularizer": "jacobian", **FALLING}, "regularizer`: `weight"),
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
