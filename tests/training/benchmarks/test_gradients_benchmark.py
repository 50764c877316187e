"""The benchmark itself, on small models."""

import json

import pytest
import tensorflow as tf

from training.benchmarks import memory, timing, workloads
from training.benchmarks.gradients import main, truncated

_EFFORT = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)
_TINY = {"names": ["tiny_mlp"]}


def test_time():
    results = main.run(["time"], _EFFORT, {"time": {**_TINY, "num_steps": 2}})
    assert json.loads(json.dumps(results)) == results
    assert results["time"]["tiny_mlp, plain"]["median"] > 0
    assert results["time"]["tiny_mlp, remat"]["median"] > 0


@pytest.mark.slow
def test_memory():
    sizes = {"names": ["transformer_layer"], "num_steps": (2, 6), "inner": 256}
    sizes |= {"sizes": {"batch": 8, "length": 64, "width": 256, "inner": 256}}
    growth = main.run(["memory"], _EFFORT, {"memory": sizes})["memory"]
    if growth != memory.NOT_MEASURABLE:
        plain = growth["transformer_layer, plain"]["states_a_step"]
        remat = growth["transformer_layer, remat"]["states_a_step"]
        assert remat < 2.0 < plain


def test_what_is_compared_is_the_same():
    workload = workloads.build("tiny_mlp", dtype="float64")
    expected = truncated._by_hand(workload, 3)()
    for remat in (False, True):
        actual = truncated.truncated_step(workload, 3, remat)()
        for one, two in zip(
            tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True
        ):
            tf.debugging.assert_near(one, two, rtol=1e-9)
