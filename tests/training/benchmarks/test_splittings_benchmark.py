"""The benchmark itself, on small batches."""

import json

import pytest

from training.benchmarks import timing
from training.benchmarks.splittings import main

EFFORT = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)


@pytest.mark.parametrize(
    "name", ["dense", pytest.param("multiscale", marks=pytest.mark.slow)]
)
def test_a_solve_is_compared_with_its_steps(name):
    sizes = {name: {"batch": 2, "num_evaluations": 3}}
    results = main.run([name], EFFORT, sizes)
    assert json.loads(json.dumps(results)) == results
    cost = results[name]
    assert cost["lower_quartile"] <= cost["median"] <= cost["upper_quartile"]
    assert cost["num_evaluations"] == 3


def test_every_measurement_has_a_name():
    assert set(main.measurements()) == set(main.names)
