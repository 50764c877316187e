"""The benchmark itself, on small models."""

import json

from training.benchmarks import timing
from training.benchmarks.compaction import main

_EFFORT = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)


def test_rows_are_counted():
    small = {
        "names": ["transformer_layer, long tail"],
        "solvers": ["anderson"],
        "inner": 16,
        "sizes": {"batch": 8, "length": 4, "width": 8, "inner": 16},
    }
    results = main.run(["solves"], _EFFORT, {"solves": small})
    assert json.loads(json.dumps(results)) == results
    (cost,) = results["solves"].values()
    assert cost["time"]["median"] > 0
    assert 1.0 <= cost["rows"] < cost["masked_rows"]
    assert cost["median_evaluations"] < cost["most_evaluations"]
