"""The scalar models: their data, measurements on a known model, and a short run."""

import json

import numpy as np
import pytest

from tests.training.runs import small_runs
from training.config import reading as configs
from training.experiments.synthetic.build import build, curve, draw
from training.experiments.synthetic.measure import measure, trajectory
from training.experiments.synthetic.tables import of_variants
from training.files import records
from training.runs.work_directory import WorkDirectory

SOLVERS = ["fixed_point_iteration", "anderson", "broyden"]
REGULARIZED = {"model.regularizer": {"class_name": "jacobian", "weight": 4}}
SHORT = {
    "experiment": "synthetic",
    "seeds": [3],
    "tensorboard": False,
    "phases": [{"epochs": 25}],
    "model": {},
    "data": {"train_examples": 512, "validation_examples": 100, "batch_size": 64},
    "optimizer": {"learning_rate": 0.03, "clip_norm": 1.0},
    "evaluation": {"budgets": [30], "max_iter": 30},
    "figure": {"slices": [0.5], "evaluations": 3},
    "variants": {"plain": {}, "regularized": REGULARIZED},
}


def config(**changes):
    return configs.resolve({**SHORT, **changes})


def linear_model(slope):
    """A model whose cell is f(z; x) = slope * z + x."""
    model = build(config(model={"units": 4}).model)
    weights = (
        [[0.0, 0.0, 1.0, -1.0]],  # U
        [0.0, 0.0, 0.0, 0.0],  # b
        [[1.0, -1.0, 0.0, 0.0]],  # W1
        [[slope], [-slope], [1.0], [-1.0]],  # W2
    )
    model.get_layer("deq").cell.set_weights([np.float32(w) for w in weights])
    return model


class TestTarget:
    def test_curve(self):
        values = curve(np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]))
        expected = [-2.8186, -0.1829, -3.0, -4.1036, -3.8171, 4.8186]
        np.testing.assert_allclose(values, expected, atol=5e-5)

    def test_pairs_are_noisy_points_of_the_curve(self):
        (x, y), validation = draw(config(data={}).data, seed=0)
        assert x.shape == y.shape == (4096, 1)
        assert [array.shape for array in validation] == [(1000, 1)] * 2
        assert x.dtype == y.dtype == np.float32
        assert -2.0 <= x.min() < -1.99 and 1.99 < x.max() <= 2.0
        assert x.mean() == pytest.approx(0.0, abs=0.06)
        noise = y - curve(x.astype("float64"))
        assert noise.std() == pytest.approx(0.05, rel=0.05)

    def test_a_seed_fixes_the_pairs(self):
        data = config().data
        first, again, other = (draw(data, seed) for seed in (0, 0, 1))
        for pairs, same, different in zip(first, again, other, strict=True):
            np.testing.assert_array_equal(pairs, same)
            assert np.all(pairs[0] != different[0])
        assert not np.isin(first[0][0], first[1][0]).any()


class TestCell:
    @pytest.mark.usefixtures("full_float32")
    def test_is_the_perceptron_of_the_paper(self):
        model = build(config().model)
        assert model.count_params() == 200
        cell = model.get_layer("deq").cell
        u, b, w1, w2 = cell.get_weights()
        x, z = np.float32([[0.3], [-1.2]]), np.float32([[2.0], [-0.5]])
        expected = np.maximum(z @ w1 + x @ u + b, 0.0) @ w2
        np.testing.assert_allclose(cell(z, cell.inject(x)), expected, rtol=1e-5)


class TestMeasure:
    @pytest.mark.parametrize("slope", [0.5, -2.0])
    def test_known_slope(self, slope):
        x = np.float32([[1.0], [-0.5], [2.0]])
        targets = x / (1 - slope) + 0.25
        result = measure(linear_model(slope), x, targets, config().evaluation)
        assert result["mean_slope"] == pytest.approx(abs(slope), rel=1e-5)
        assert result["max_slope"] == pytest.approx(abs(slope), rel=1e-5)
        assert result["fraction_above_one"] == float(abs(slope) > 1)
        assert result["rmse"] == pytest.approx(0.25, abs=2e-3)
        assert not result["failed"]
        assert result["mse"] == pytest.approx(result["rmse"] ** 2)
        left = [result[f"{name}_not_converged"] for name in SOLVERS]
        assert left == [3 if abs(slope) > 1 else 0, 0, 0]
        for name in ("anderson", "broyden"):
            assert result[f"{name}_evaluations"] <= 4

    def test_a_broken_model_has_failed(self):
        model = linear_model(float("nan"))
        x = np.float32([[1.0], [2.0]])
        assert measure(model, x, x, config().evaluation)["failed"]

    def test_trajectory(self):
        layer = linear_model(0.5).get_layer("deq")
        points = trajectory(layer, 1.0, "fixed_point_iteration", 5)
        np.testing.assert_allclose(points, [0, 1, 1.5, 1.75, 1.875], rtol=1e-6)
        # Two evaluations of a linear function determine its fixed point.
        points = trajectory(layer, 1.0, "broyden", 3)
        np.testing.assert_allclose(points, [0, 1, 2], rtol=1e-5)
        assert layer.solver.get_config()["tol"] is not None


def test_tables_leave_out_failed_runs(tmp_path):
    directory = WorkDirectory.start(tmp_path / "run", config(seeds=[0, 1, 2]))
    with directory.in_use():
        for seed in (0, 1, 2):
            numbers = dict.fromkeys(("mse", "mean_slope", "max_slope"), 0.25)
            numbers |= {f"{name}_evaluations": 7.5 for name in SOLVERS}
            numbers |= {f"{name}_not_converged": 12 for name in SOLVERS}
            facts = {**numbers, "failed": seed == 2, "rmse": 0.5 + seed}
            rows = [{"budget": 30, "rmse": 0.5, "residual": 0.1}]
            evaluation = {"parameters": 200, **facts, "budgets": rows}
            path = directory.run(f"plain/seed_{seed}") / records.EVALUATION
            records.write_json(path, evaluation)
    rows = [line.split() for line in of_variants(directory).splitlines()]
    assert rows[2][:4] == ["plain", "1.0000", "+-", "0.7071"]
    assert ["plain", "1/3"] in rows
    assert rows[-1][:7] == ["plain", "7.50", "+-", "0.00", "12.0", "+-", "0.0"]


@pytest.mark.slow
def test_regularization_flattens(tmp_path):
    small_runs.finished(tmp_path / "run", config())
    found = [
        json.loads((tmp_path / "run" / name / "seed_3/evaluation.json").read_text())
        for name in ("plain", "regularized")
    ]
    plain, regularized = found
    assert regularized["mean_slope"] < 0.2 * plain["mean_slope"]
    for result in found:
        # The constant model has an error of about 2.2.
        assert result["rmse"] < 1.0
        assert result["budgets"][0]["rmse"] == pytest.approx(result["rmse"], rel=0.05)
    for name in SOLVERS:
        count = f"{name}_evaluations"
        assert regularized[count] < plain[count]
        assert regularized[f"{name}_not_converged"] == 0
    assert (tmp_path / "run/plain/seed_3/surface.png").exists()
    assert "Mean NFE" in (tmp_path / "run" / "report.txt").read_text()
