"""Measurements of memory and time, and the tables of the papers that have them."""

import time

import pytest
import tensorflow as tf

from training.costs import measuring, models

EFFORT = measuring.Effort(seconds=0.0, min_rounds=2, attempts=1)
SIZES = {"hidden_dim": 40, "num_heads": 10, "intermediate_dim": 40}
EXPLICIT = {"family": "transformer_xl", **SIZES, "num_layers": 2, "memory_length": 4}
EQUILIBRIUM = {
    "family": "deq_transformer",
    **SIZES,
    **models._anderson(2, 2, {"class_name": "jacobian"}),
}


def test_ratio_is_numerator_over_denominator():
    # Far enough apart for any load of the machine.
    ratio = measuring.compare(lambda: time.sleep(0.05), lambda: None, EFFORT)
    assert ratio.median > 1 and ratio.difference > 0
    assert ratio.numerator.rounds == 2


@pytest.mark.slow
def test_worker_calls_functions_until_it_fails():
    with measuring.Worker() as call:
        for value in (1.0, 2.0):
            assert call(measuring.spread, values=[value])["median"] == value
        with pytest.raises(RuntimeError, match=r"measuring\.spread.*exit status 1"):
            call(measuring.spread, number=3)


def test_peak_is_what_a_call_allocates():
    if not measuring.is_memory_measurable():
        pytest.skip("The allocator does not collect statistics.")
    cases = {"64 MiB": {"rows": 16}, "nothing": {"rows": 0}}

    def make(rows):
        return lambda: tf.reduce_sum(tf.ones((rows, 2**20)))

    # Small tensors of others come and go meanwhile.
    assert measuring.peaks(make, cases) == pytest.approx(
        {"64 MiB": 64.0, "nothing": 0.0}, abs=6.0
    )


@pytest.mark.slow
def test_memory_of_models():
    group = {
        "layers": {**EXPLICIT, "length": 4, "published": 8.0},
        "DEQ": {**EQUILIBRIUM, "length": 4, "published": 2.0},
        "inference": {**EQUILIBRIUM, "length": 4, "training": False},
    }
    found = models.memory(EFFORT, {"group": group})["group"]
    assert found["DEQ"]["published_relative"] == 0.25
    assert all(one["milliseconds"] > 0 for one in found.values())
    assert "published_gb" not in found["inference"]


@pytest.mark.slow
def test_runtime_of_models():
    pair = EQUILIBRIUM, EXPLICIT, 3.1, None
    found = models.runtime(EFFORT, {"DEQ": pair})["DEQ"]
    assert found["published_training"] == 3.1
    assert min(found["training"]["median"], found["inference"]["median"]) > 0


@pytest.mark.parametrize("name", models.MEASUREMENTS)
def test_quick_tables_are_part_of_the_tables(name, monkeypatch):
    measured = []

    def measure(function, **arguments):
        measured.append(arguments)
        spread = measuring.spread([1.0])
        return {"training": spread, "inference": spread, "mib": 1.0}

    monkeypatch.setattr(models, "in_fresh_process", measure)
    few = models.MEASUREMENTS[name](measuring.QUICK)
    count = len(measured)
    all_ = models.MEASUREMENTS[name](EFFORT)
    assert set(few) < set(all_) and 0 < count < len(measured) - count
