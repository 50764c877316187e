"""The benchmark itself, in short epochs."""

import json

import pytest

from training.benchmarks import timing
from training.benchmarks.tensorboard import main


@pytest.mark.slow
def test_epochs_take_turns():
    effort = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)
    results = main.run(["digits"], effort, {"digits": {"steps": 3}})
    assert json.loads(json.dumps(results)) == results
    cost = results["digits"]
    assert cost["pairs"] == 2 and cost["steps"] == 3
    assert cost["lower_quartile"] <= cost["median"] <= cost["upper_quartile"]
    assert cost["step"] > 0
