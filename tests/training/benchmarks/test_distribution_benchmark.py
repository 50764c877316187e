"""The benchmark itself, on a small model."""

import json

import pytest

from training.benchmarks import timing
from training.benchmarks.distribution import main

_EFFORT = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)


@pytest.mark.slow
def test_several_devices_over_one():
    small = {
        "num_steps": 1,
        "overrides": [
            "data.train_examples=64",
            "data.batch_size=8",
            "model.stem.filters=4",
            "model.cell.filters=4",
            "model.solver.max_iter=2",
        ],
    }
    results = main.run(["mirrored"], _EFFORT, {"mirrored": small})
    assert json.loads(json.dumps(results)) == results
    cost = results["mirrored"]
    assert cost["throughput"] == pytest.approx(1 / cost["time"]["median"])
    assert cost["time"]["numerator"]["rounds"] == 2
