"""The benchmark itself, on small models."""

import json

import pytest

from training.benchmarks import memory, timing
from training.benchmarks.mdeq import main

_EFFORT = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)
_SMALL = {"small": {"filters": (8, 16), "expansion": 2}}
_MODELS = {
    "chosen": {
        "MDEQ": {"preset": "mdeq_tiny_cifar10", "budget": 2},
        "ResNet": {"network": "resnet_18", "upsampling": 4},
    },
    "batch": 2,
    "side": 16,
}


@pytest.mark.slow
def test_step():
    sizes = {"cells": _SMALL, "num_evaluations": 3, "batch": 2, "side": 4}
    results = main.run(["step"], _EFFORT, {"step": sizes})
    assert json.loads(json.dumps(results)) == results
    assert results["step"]["small"]["ratio"]["median"] > 0
    assert results["step"]["small"]["statistics"]["deq_evaluations"] <= 3


@pytest.mark.slow
def test_memory():
    peaks = main.run(["memory"], _EFFORT, {"memory": _MODELS})["memory"]
    if peaks != memory.NOT_MEASURABLE:
        # The gradients of a ResNet are large; tensors of a small MDEQ may not count.
        assert peaks["MDEQ"] >= 0 and peaks["ResNet"] > 0


@pytest.mark.slow
def test_time():
    results = main.run(["time"], _EFFORT, {"time": _MODELS})
    assert results["time"]["MDEQ"]["median"] > 0
    assert results["time"]["ResNet"]["median"] > 0
