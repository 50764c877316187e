"""The benchmark itself, on a small model."""

import json

import numpy as np
import pytest

from training.benchmarks.warm_starts import main
from training.benchmarks.warm_starts.evaluations import moving


def test_images_move_to_and_fro():
    image = np.zeros((1, 5, 5, 1), "float32")
    image[0, 2, 2] = 1.0
    columns = [
        float((frame[0].sum(axis=(0, 2)) * np.arange(5)).sum())
        for frame in moving(image, 0.5, 9)
    ]
    steps = np.abs(np.diff(columns))
    np.testing.assert_allclose(steps, 0.5, atol=1e-5)
    assert (min(columns), max(columns)) == pytest.approx((1, 3), abs=1e-5)
    assert columns[0] == columns[-1] == 2


@pytest.mark.slow
def test_evaluations_are_counted(finished_run, tmp_path):
    out = tmp_path / "results.json"
    run = [str(finished_run.path), "--variant", "equilibrium", "--out", str(out)]
    assert main([*run, "--frames", "3", "--speeds", "0", "0.5"]) == 0
    rows = json.loads(out.read_text())["speeds"]
    assert [row["speed"] for row in rows] == [0, 0.5]
    # Its budget is too small for an equilibrium.
    assert all(row["warm"] == row["cold"] == 4 for row in rows)
    assert all(row["converged"] == 0 for row in rows)
