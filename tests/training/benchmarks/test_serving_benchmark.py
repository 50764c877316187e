"""The benchmark itself, in few requests."""

import json

import pytest

from training.benchmarks import timing
from training.benchmarks.serving import main


@pytest.mark.slow
def test_requests_and_exports_are_timed():
    effort = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)
    sizes = {"exports": {"formats": ("saved_model",)}}
    results = main.run(["signatures", "exports"], effort, sizes)
    assert json.loads(json.dumps(results)) == results
    assert set(results["exports"]) == {"saved_model"}
    assert results["exports"]["saved_model"] > 0
    for name in ("serve", "serve_with_statistics"):
        found = results["signatures"][name]
        ratio = found["ratio"]
        asked, alone = (ratio[part]["median"] for part in ("numerator", "denominator"))
        assert found["overhead_ms"] == asked - alone
