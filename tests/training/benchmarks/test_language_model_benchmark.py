"""The benchmark itself, on small models."""

import json

import pytest

from training.benchmarks import memory, resident_memory, timing
from training.benchmarks.language_model import main as command

_EFFORT = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)
_CELLS = {
    "small": {
        "cell": {"units": 8, "num_heads": 2, "intermediate_dim": 16},
        "batch": 2,
        "length": 4,
    }
}
_ARCHITECTURE = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 16}
_SIZES = {
    "step": {"cells": _CELLS, "num_evaluations": 3},
    "inject": {"cells": _CELLS, "num_evaluations": 3},
    "generation": {
        "prefixes": (4,),
        "num_new": 3,
        "model": {"vocabulary_size": 11, **_ARCHITECTURE},
    },
    "memory": {
        "chosen": {"DEQ": {"budget": 3}, "layers": {"explicit": {"num_layers": 2}}},
        "batch": 2,
        "length": 4,
        "architecture": _ARCHITECTURE,
    },
    "evaluation": {
        "batch": 2,
        "length": 4,
        "architecture": {"vocabulary_size": 11, **_ARCHITECTURE},
    },
}


def measured(*parts):
    results = command.run(parts, _EFFORT, _SIZES)
    assert json.loads(json.dumps(results)) == results
    return results


@pytest.mark.slow
def test_times():
    results = measured("step", "inject", "generation")
    assert results["step"]["small"]["ratio"]["median"] > 0
    assert results["step"]["small"]["statistics"]["deq_evaluations"] <= 3
    assert results["inject"]["small"]["median"] > 0
    assert results["generation"]["4"]["solve_prefix_ms"] > 0


@pytest.mark.slow
def test_memory():
    peaks = measured("memory")["memory"]
    if peaks != memory.NOT_MEASURABLE:
        # Tensors as small as these are not counted everywhere.
        assert peaks["DEQ"] >= 0 and peaks["layers"] >= 0


@pytest.mark.skipif(
    not resident_memory.is_available(), reason="the system does not tell"
)
@pytest.mark.slow
def test_evaluation():
    results = measured("evaluation")
    assert results["evaluation"]["peak_mib"] > 100
    # Of six seeds, it was within 2 % of that of a uniform guess.
    assert results["evaluation"]["perplexity"] == pytest.approx(11, rel=0.1)
