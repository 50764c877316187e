"""The synthetic study: its data, its measurements on a known model, and a short run."""

import csv
import json

import keras
import numpy as np
import pytest

import deq_keras
from training.config import reading as configs
from training.errors import InputError
from training.runs.work_directory import WorkDirectory
from training.studies import study_runs
from training.studies.synthetic import study
from training.studies.synthetic.measure import measure, surface, trajectory
from training.studies.synthetic.model import Pairs, ScalarCell, build, curve, draw
from training.studies.synthetic.table import flatten, render, summarize

SOLVERS = ["fixed_point_iteration", "anderson", "broyden"]
SHORT = {
    "experiment": "synthetic",
    "weights": [0, 4],
    "seeds": [3],
    "epochs": 25,
    "data": {"train_examples": 512, "validation_examples": 100, "batch_size": 64},
    "optimizer": {"learning_rate": 0.03, "clip_norm": 1.0},
    "measurement": {"max_iter": 30},
    "figure": {"seed": 3, "slices": [0.5], "evaluations": 3},
}


def config(**changes):
    return configs.resolve({**SHORT, **changes})


def linear_model(slope):
    """A model whose cell is f(z; x) = slope * z + x."""
    model = build(config(model={"units": 4}), 0.0, seed=0)
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
        training, validation = draw(configs.resolve(SHORT | {"data": {}}).data, seed=0)
        assert training.x.shape == training.y.shape == (4096, 1)
        assert validation.x.shape == validation.y.shape == (1000, 1)
        assert training.x.dtype == training.y.dtype == np.float32
        assert -2.0 <= training.x.min() < -1.99 and 1.99 < training.x.max() <= 2.0
        assert training.x.mean() == pytest.approx(0.0, abs=0.06)
        noise = training.y - curve(training.x.astype("float64"))
        assert noise.std() == pytest.approx(0.05, rel=0.05)

    def test_a_seed_fixes_the_pairs(self):
        data = config().data
        first, again, other = (draw(data, seed) for seed in (0, 0, 1))
        for pairs, same, different in zip(first, again, other, strict=True):
            np.testing.assert_array_equal(pairs.x, same.x)
            np.testing.assert_array_equal(pairs.y, same.y)
            assert np.all(pairs.x != different.x)
        assert not np.isin(first[0].x, first[1].x).any()


class TestCell:
    def test_is_the_perceptron_of_the_paper(self):
        model = build(config(), 0.0, seed=1)
        assert model.count_params() == 200
        cell = model.get_layer("deq").cell
        u, b, w1, w2 = cell.get_weights()
        x, z = np.float32([[0.3], [-1.2]]), np.float32([[2.0], [-0.5]])
        expected = np.maximum(z @ w1 + x @ u + b, 0.0) @ w2
        np.testing.assert_allclose(cell(z, cell.inject(x)), expected, rtol=1e-5)

    def test_contracts_at_initialization(self):
        x = np.linspace(-2, 2, 50, dtype="float32")[:, None]
        for seed in range(3):
            layer = build(config(), 0.0, seed).get_layer("deq")
            solution = layer.solve(x)
            assert np.all(solution.status == deq_keras.solvers.CONVERGED)

    def test_refuses_units(self):
        for units in (0, 2.5, True):
            with pytest.raises(ValueError, match=f"Received: units={units}"):
                ScalarCell(units)

    def test_saves(self, tmp_path):
        model = build(config(), 2.0, seed=0)
        x = np.float32([[0.5], [1.0]])
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded(x), model(x))
        assert loaded.get_layer("deq").regularizer.weight == 2.0


class TestMeasure:
    @pytest.mark.parametrize("slope", [0.5, -2.0])
    def test_known_slope(self, slope):
        x = np.float32([[1.0], [-0.5], [2.0]])
        pairs = Pairs(x, x / (1 - slope) + 0.25)
        result = measure(linear_model(slope), pairs, config().measurement)
        assert result["mean_slope"] == pytest.approx(abs(slope), rel=1e-5)
        assert result["max_slope"] == pytest.approx(abs(slope), rel=1e-5)
        assert result["share_above_one"] == float(abs(slope) > 1)
        assert result["rmse"] == pytest.approx(0.25, abs=2e-3)
        assert not result["failed"]
        assert result["mse"] == pytest.approx(result["rmse"] ** 2)
        assert list(result["solvers"]) == SOLVERS
        plain = result["solvers"]["fixed_point_iteration"]
        assert plain["not_converged"] == (3 if abs(slope) > 1 else 0)
        for name in ("anderson", "broyden"):
            assert result["solvers"][name]["not_converged"] == 0
            assert result["solvers"][name]["evaluations"] <= 4

    def test_evaluations_of_plain_iteration(self):
        # z_k = 2 - 2^(1-k): the residual of evaluation k + 1 is 2^-k / (2 - 2^-k).
        pairs = Pairs(np.float32([[1.0]]), np.float32([[2.0]]))
        result = measure(linear_model(0.5), pairs, config().measurement)
        residuals = [2.0**-k / (2 - 2.0**-k) for k in range(20)]
        expected = 1 + next(k for k, r in enumerate(residuals) if r <= 1e-3)
        plain = result["solvers"]["fixed_point_iteration"]
        assert plain["evaluations"] == expected

    def test_a_broken_model_has_failed(self):
        model = linear_model(float("nan"))
        pairs = Pairs(np.float32([[1.0], [2.0]]), np.float32([[1.0], [2.0]]))
        assert measure(model, pairs, config().measurement)["failed"]

    def test_surface(self):
        layer = linear_model(0.5).get_layer("deq")
        values = surface(layer, [1.0, -1.0], [0.0, 2.0, 4.0])
        np.testing.assert_allclose(values, [[1, -1], [2, 0], [3, 1]], atol=1e-6)

    def test_trajectory(self):
        layer = linear_model(0.5).get_layer("deq")
        points = trajectory(layer, 1.0, "fixed_point_iteration", 5)
        np.testing.assert_allclose(points, [0, 1, 1.5, 1.75, 1.875], rtol=1e-6)
        # Two evaluations of a linear function determine its fixed point.
        points = trajectory(layer, 1.0, "broyden", 3)
        np.testing.assert_allclose(points, [0, 1, 2], rtol=1e-5)
        assert layer.solver.get_config()["tol"] is not None


class TestTable:
    def test_mean_and_deviation_over_seeds(self):
        results = [
            {"weight": weight, "seed": seed, "failed": False, "rmse": seed + weight}
            for seed in (0, 1, 2)
            for weight in (0.0, 4.0)
        ]
        assert summarize(results) == [
            {"weight": 0.0, "runs": 3, "failed": 0, "rmse_mean": 1.0, "rmse_std": 1.0},
            {"weight": 4.0, "runs": 3, "failed": 0, "rmse_mean": 5.0, "rmse_std": 1.0},
        ]
        assert summarize(results[:1])[0]["rmse_std"] is None

    def test_failed_runs_are_counted_apart(self):
        result = {"weight": 0.0, "failed": False, "rmse": 0.5}
        failed = result | {"failed": True, "rmse": float("nan")}
        (summary,) = summarize([result, failed])
        assert (summary["runs"], summary["failed"]) == (2, 1)
        assert (summary["rmse_mean"], summary["rmse_std"]) == (0.5, None)
        assert summarize([failed])[0]["rmse_mean"] is None

    def test_text(self):
        result = {"weight": 2.0, "failed": False, "mean_slope": 0.25, "max_slope": 0.5}
        counts = {"evaluations": 7.5, "not_converged": 12, "rmse": 0.1}
        result |= {"rmse": 0.1, "mse": 0.01, "solvers": {"anderson": counts}}
        text = render(summarize([flatten(result)]), ["anderson"])
        rows = [line.split() for line in text.splitlines()]
        assert rows[1] == ["2", "1", "0", "0.1000", "0.01000", "0.2500", "0.500"]
        assert rows[-1] == ["2", "7.50", "12.0"]


class TestBadInput:
    def test_seed_of_the_figure(self, tmp_path):
        directory = WorkDirectory.start(tmp_path, config(figure={"seed": 7}))
        with pytest.raises(InputError, match=r"`figure.seed`.*Received: seed=7"):
            study.run(directory.config, directory)

    def test_argument_of_the_solver(self):
        model = {"solver": {"class_name": "anderson", "history": 0}}
        with pytest.raises(InputError, match="`model`: .*history"):
            build(config(model=model), 0.0, seed=0)

    def test_typo(self):
        with pytest.raises(InputError, match=r"`data.nois`.*`data.noise`"):
            config(data={"nois": 0.1})

    def test_negative_weight(self):
        with pytest.raises(InputError, match=r"`weights.1`"):
            config(weights=[0, -1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = WorkDirectory.start(tmp_path_factory.mktemp("synthetic"), config())
    study.run(directory.config, directory)
    return directory


@pytest.mark.slow
class TestRun:
    def test_regularization_flattens(self, finished):
        plain, regularized = json.loads((finished.path / "results.json").read_text())
        assert (plain["weight"], regularized["weight"]) == (0.0, 4.0)
        assert regularized["mean_slope"] < 0.2 * plain["mean_slope"]
        for result in (plain, regularized):
            # The constant model has an error of about 2.2.
            assert result["rmse"] < 1.0
        for name in SOLVERS:
            before, after = plain["solvers"][name], regularized["solvers"][name]
            assert after["evaluations"] < before["evaluations"]
            assert after["not_converged"] == 0

    def test_files(self, finished):
        path = finished.path
        header = (path / "surfaces.png").read_bytes()[:8]
        assert header == b"\x89PNG\r\n\x1a\n"
        assert "Mean NFE" in (path / "report.txt").read_text()
        with (path / "summary.csv").open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        assert [row["weight"] for row in rows] == ["0.0", "4.0"]
        with (path / "gamma-4-seed-3" / "history.csv").open(newline="") as lines:
            history = list(csv.DictReader(lines))
        assert len(history) == 25
        assert float(history[-1]["loss"]) < 0.1 * float(history[0]["loss"])

    def test_resumes_without_training_again(self, finished, monkeypatch):
        file = finished.path / "results.json"
        results = file.read_text()
        file.unlink()

        def refuse(*_, **__):
            raise RuntimeError("trained again")

        monkeypatch.setattr(study_runs, "fit", refuse)
        directory = WorkDirectory.resume(finished.path, finished.config)
        study.run(directory.config, directory)
        assert file.read_text() == results
        (finished.path / "gamma-4-seed-3" / "result.json").unlink()
        with pytest.raises(RuntimeError, match="trained again"):
            study.run(directory.config, directory)
