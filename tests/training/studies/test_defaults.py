"""The study of the defaults: its tasks, measurements and tables, and a short run."""

import copy
import csv
import json
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from training.config import reading as configs
from training.errors import InputError
from training.runs.work_directory import WorkDirectory
from training.studies import study_runs
from training.studies.defaults import study
from training.studies.defaults.attention_cell import AttentionCell
from training.studies.defaults.data import smooth_function
from training.studies.defaults.measure import measure, relative_residual
from training.studies.defaults.model import build
from training.studies.defaults.table import render, summarize
from training.studies.defaults.task import TASKS, accuracy, explained_variance

TWIN = {
    "equilibrium.solver": {
        "class_name": "fixed_point_iteration",
        "max_iter": 3,
        "tol": None,
    },
    "equilibrium.gradient": "unrolled",
    "equilibrium.regularizer": None,
}
SHORT = {
    "experiment": "defaults",
    "seeds": [3],
    "tasks": [
        {
            "name": "regression",
            "units": 8,
            "epochs": 10,
            "batch_size": 32,
            "train_examples": 512,
            "test_examples": 64,
            "optimizer": {"learning_rate": 0.02},
        },
    ],
    "equilibrium": {"solver": {"class_name": "anderson", "max_iter": 5}},
    "variants": {"default": {}, "twin": TWIN},
    "reference": "twin",
    "measurement": {"long_budget": 12, "num_samples": 4, "max_iter": 40},
}


def config(**changes):
    return configs.resolve({**copy.deepcopy(SHORT), **changes})


def task_config(name, units=8):
    sizes = {"train_examples": 40, "test_examples": 20}
    return config(tasks=[{"name": name, "units": units, "epochs": 1, **sizes}]).tasks[0]


def model_of(name, variant="default", seed=0):
    """An untrained model and the test examples of its task."""
    task = task_config(name)
    _, testing = TASKS[name].draw(task, seed)
    equilibrium = configs.variant(config(), variant).equilibrium
    return build(equilibrium, task, testing.inputs.shape[1:], seed), testing


class TestExamples:
    def test_sorting(self):
        training, testing = TASKS["sorting"].draw(task_config("sorting"), seed=1)
        assert training.inputs.shape == (40, 8, 12)
        assert testing.targets.shape == (20, 8)
        symbols = training.inputs[..., :4].argmax(axis=-1)
        np.testing.assert_array_equal(np.sort(symbols), training.targets)
        assert np.all(training.inputs[..., 4:] == np.eye(8))

    def test_regression(self):
        task = config(tasks=[{"name": "regression", "units": 1, "epochs": 1}]).tasks[0]
        training, testing = TASKS["regression"].draw(task, seed=0)
        assert training.inputs.shape == (2048, 4) and testing.targets.shape == (1024, 1)
        noise = training.targets[:, 0] - smooth_function(training.inputs)
        assert noise.std() == pytest.approx(0.02, rel=0.1)
        x = np.array([[0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0]])
        expected = [1.0 + 1.0, np.exp(-1.0) * np.cos(2.0)]
        np.testing.assert_allclose(smooth_function(x), expected)

    def test_digits(self):
        task = config(tasks=[{"name": "digits_dense", "units": 1, "epochs": 1}]).tasks[
            0
        ]
        training, testing = TASKS["digits_dense"].draw(task, seed=0)
        assert training.inputs.shape == (1438, 8, 8, 1)
        assert testing.inputs.dtype == np.float32 and len(testing.targets) == 359
        assert training.inputs.mean() == pytest.approx(0.0, abs=1e-3)
        assert training.inputs.std() == pytest.approx(1.0, abs=1e-3)

    @pytest.mark.parametrize("name", ["sorting", "regression"])
    def test_a_seed_fixes_what_is_drawn(self, name):
        first, again, other = (
            TASKS[name].draw(task_config(name), seed)[0] for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(first.inputs, again.inputs)
        np.testing.assert_array_equal(first.targets, again.targets)
        assert np.any(first.inputs != other.inputs)


class TestScore:
    def test_accuracy(self):
        logits = np.eye(3)[[[0, 1], [2, 2]]]
        assert accuracy(logits, np.array([[0, 1], [2, 0]])) == 75.0

    def test_explained_variance(self):
        targets = np.float32([[0.0], [2.0]])
        assert explained_variance(targets, targets) == 100.0
        assert explained_variance(np.ones((2, 1)), targets) == 0.0
        assert explained_variance(targets + 0.5, targets) == 75.0


class TestAttentionCell:
    def test_is_equivariant_to_permutations(self):
        keras.utils.set_random_seed(0)
        cell = AttentionCell(8, num_heads=2)
        generator = np.random.default_rng(0)
        inputs = generator.normal(size=(2, 5, 3)).astype("float32")
        state = generator.normal(size=(2, 5, 8)).astype("float32")
        order = [3, 1, 4, 0, 2]
        value = cell(state, cell.inject(inputs)).numpy()
        permuted = cell(state[:, order], cell.inject(inputs[:, order]))
        np.testing.assert_allclose(permuted, value[:, order], atol=1e-5)
        # Positions see one another.
        changed = inputs.copy()
        changed[:, 0] += 1.0
        second = cell(value, cell.inject(inputs)).numpy()
        value = cell(state, cell.inject(changed))
        second_changed = cell(value, cell.inject(changed)).numpy()
        assert np.all(np.abs(second - second_changed).max(axis=(0, 2)) > 1e-3)

    def test_second_order_gradient(self):
        # What a regulariser of the Jacobian differentiates: |J^T w|^2.
        keras.utils.set_random_seed(0)
        cell = AttentionCell(4, num_heads=2, dtype="float64")
        state, injection, weights, direction = tf.random.normal(
            (4, 1, 3, 4), seed=1, dtype="float64"
        )
        cell.inject(injection)

        def penalty(state):
            with tf.GradientTape() as tape:
                tape.watch(state)
                value = tf.reduce_sum(cell(state, injection) * weights)
            return tf.reduce_sum(tf.square(tape.gradient(value, state)))

        with tf.GradientTape() as tape:
            tape.watch(state)
            value = penalty(state)
        slope = tf.reduce_sum(tape.gradient(value, state) * direction)
        step = 1e-5 * direction
        expected = (penalty(state + step) - penalty(state - step)) / 2e-5
        np.testing.assert_allclose(slope, expected, rtol=1e-6)

    @pytest.mark.parametrize("sizes", [(6, 4), (0, 1), (4, 0)])
    def test_refuses_sizes(self, sizes):
        with pytest.raises(ValueError, match=f"units={sizes[0]}, num_heads={sizes[1]}"):
            AttentionCell(*sizes)

    def test_saves(self, tmp_path):
        model, examples = model_of("sorting")
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded(examples.inputs), model(examples.inputs))


class TestBuild:
    def test_default_is_what_the_layer_defaults_to(self):
        layer = model_of("regression")[0].get_layer("deq")
        plain = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(1))
        assert type(layer.gradient) is type(plain.gradient)
        assert type(layer.regularizer) is type(plain.regularizer)
        assert isinstance(layer.solver, deq_keras.solvers.Anderson)
        assert layer.solver.max_iter == 5

    def test_twin_applies_the_cell_so_often(self):
        model, examples = model_of("regression", "twin")
        layer = model.get_layer("deq")
        assert isinstance(layer.gradient, deq_keras.gradients.UnrolledGradient)
        assert layer.regularizer is None
        injection = layer.cell.inject(examples.inputs)
        state = layer.cell.initial_state(injection)
        for _ in range(3):
            state = layer.cell(state, injection)
        np.testing.assert_allclose(layer(examples.inputs), state, atol=1e-6)

    def test_a_seed_fixes_the_weights(self):
        for name in ("sorting", "regression"):
            first, again, other = (model_of(name, seed=s)[0] for s in (0, 0, 1))
            for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
                np.testing.assert_array_equal(a, b)
            pairs = zip(first.get_weights(), other.get_weights(), strict=True)
            assert any(np.any(a != b) for a, b in pairs)


class TestMeasure:
    @pytest.mark.parametrize("name", TASKS)
    def test_every_task(self, name):
        model, examples = model_of(name)
        settings = config(measurement={"num_samples": 2, "max_iter": 2}).measurement
        score = TASKS[name].score
        numbers = measure(model, score, examples, settings)
        predictions = model.predict(examples.inputs, verbose=0)
        expected = score(predictions, examples.targets)
        assert numbers["score"] == pytest.approx(expected, rel=1e-4)
        assert 1 <= numbers["evaluations"] <= 5
        assert numbers["evaluations"] <= numbers["long_evaluations"] <= 30
        assert numbers["long_residual"] <= numbers["residual"]

    def test_spectral_radius(self):
        model, examples = model_of("regression")
        numbers = measure(model, explained_variance, examples, config().measurement)
        layer = model.get_layer("deq")
        state = layer.solve(examples.inputs, max_iter=12).value.numpy()[:4]
        kernel = layer.cell.recurrent.kernel.numpy()
        jacobians = [np.diag(1 - z**2) @ kernel.T for z in state]
        radii = [np.abs(np.linalg.eigvals(jacobian)).max() for jacobian in jacobians]
        assert numbers["spectral_radius"] == pytest.approx(np.mean(radii), rel=0.02)
        assert numbers["largest_spectral_radius"] == pytest.approx(max(radii), rel=0.02)

    @pytest.mark.parametrize("converged", [[True, False, True, True], [False] * 4])
    def test_the_radii_that_were_found(self, monkeypatch, converged):
        def radius(*_):
            values = tf.constant([0.3, 9.0, 0.4, 0.5])
            return deq_keras.diagnostics.SpectralRadius(
                values, values, tf.constant(converged), tf.constant(1)
            )

        monkeypatch.setattr(deq_keras.diagnostics, "spectral_radius", radius)
        model, examples = model_of("regression")
        numbers = measure(model, explained_variance, examples, config().measurement)
        assert numbers["spectral_radius_converged"] == np.mean(converged)
        expected = (pytest.approx(0.4), 0.5) if any(converged) else (None, None)
        names = ("spectral_radius", "largest_spectral_radius")
        assert tuple(numbers[name] for name in names) == expected

    def test_broken_model(self):
        model, examples = model_of("regression")
        kernel = model.get_layer("prediction").kernel
        kernel.assign(kernel * float("nan"))
        numbers = measure(model, explained_variance, examples, config().measurement)
        assert numbers["score"] is None
        json.dumps(numbers, allow_nan=False)

    def test_relative_residual(self):
        value, point = np.zeros((3, 2, 2)), np.zeros((3, 2, 2))
        value[0, 0, 0], point[0, 1, 1], point[1, 0, 0] = 4.0, 3.0, 1.0
        solution = SimpleNamespace(value=tf.constant(value), point=tf.constant(point))
        residual = relative_residual(solution)
        np.testing.assert_allclose(residual, [5.0 / 4.0, np.inf, 0.0])


class TestTable:
    RESULTS = [
        {"task": "a", "variant": name, "seed": seed, "score": score}
        for name, scores in {"new": [91.0, 95.0], "twin": [90.0, 92.0]}.items()
        for seed, score in enumerate(scores)
    ]

    def test_gap_is_of_the_same_seed(self):
        new, twin = summarize(self.RESULTS, "twin")
        assert (new["task"], new["variant"], new["runs"]) == ("a", "new", 2)
        assert (new["score_mean"], new["gap_mean"]) == (93.0, 2.0)
        assert new["gap_std"] == pytest.approx(2**0.5)
        assert (twin["gap_mean"], twin["gap_std"]) == (0.0, 0.0)

    def test_failed_runs_are_counted_apart(self):
        failed = [result | {"score": None} for result in self.RESULTS[:1]]
        new, twin = summarize(failed + self.RESULTS[1:], "twin")
        assert (new["failed"], new["score_mean"], new["gap_mean"]) == (1, 95.0, 3.0)
        assert new["gap_std"] is None and twin["failed"] == 0
        (nothing,) = summarize(failed, "twin")
        assert nothing["score_mean"] is None and nothing["gap_mean"] is None

    def test_a_run_whose_radius_was_not_found_has_not_failed(self):
        unknown = {"spectral_radius": None, "spectral_radius_converged": 0.0}
        known = {"spectral_radius": 0.5, "spectral_radius_converged": 1.0}
        results = [
            result | radius
            for result, radius in zip(self.RESULTS[:2], (unknown, known), strict=True)
        ]
        (summary,) = summarize(results, "twin")
        assert summary["failed"] == 0 and summary["score_mean"] == 93.0
        assert summary["spectral_radius_mean"] == 0.5
        assert summary["spectral_radius_converged_mean"] == 0.5

    def test_text(self):
        numbers = {"residual": 0.01, "spectral_radius": 0.9, "evaluations": 7.0}
        numbers |= {"spectral_radius_converged": 0.75}
        numbers |= {"long_score": 91.0, "seconds": 2.0}
        results = [
            result | numbers | {"task": task}
            for task in ("a", "b")
            for result in self.RESULTS[::2]
        ]
        rows = [
            line.split() for line in render(summarize(results, "twin"), 30).split("\n")
        ]
        assert rows[1] == (
            [
                "a",
                "new",
                "0/1",
                "91.00",
                "1.00",
                "91.00",
                "0.0100",
                "0.900",
                "0.75",
                "7.0",
                "2.0",
            ]
        )
        assert [row[:2] for row in rows[3:]] == [[], ["b", "new"], ["b", "twin"]]


class TestLine:
    @pytest.mark.parametrize(
        "radius, share, words",
        [
            (0.5, 1.0, "spectral radius 0.500, NFE"),
            (0.5, 0.75, r"spectral radius 0.500 \(found for 75%\), NFE"),
            (None, 0.0, "spectral radius not found, NFE"),
        ],
    )
    def test_radius(self, radius, share, words):
        result = {"task": "a", "seed": 0, "variant": "new", "seconds": 1.0}
        result |= dict.fromkeys(("score", "long_score", "residual", "evaluations"), 1.0)
        result |= {"spectral_radius": radius, "spectral_radius_converged": share}
        assert re.search(words, study._line(result))


class TestBadInput:
    def test_reference(self, tmp_path):
        directory = WorkDirectory.start(tmp_path, config(reference="default2"))
        with pytest.raises(InputError, match="`reference`.*default, twin"):
            study.run(directory.config, directory)

    def test_repeated_task(self, tmp_path):
        directory = WorkDirectory.start(tmp_path, config(tasks=SHORT["tasks"] * 2))
        with pytest.raises(InputError, match="`tasks` must have different names"):
            study.run(directory.config, directory)

    @pytest.mark.parametrize("name", ["digits_pooled", "sorting"])
    def test_units(self, name):
        with pytest.raises(InputError, match=f"task `{name}`: "):
            build(config().equilibrium, task_config(name, units=6), (8, 8, 1), seed=0)

    def test_argument_of_the_gradient(self):
        gradient = {"class_name": "neumann", "num_terms": 0}
        equilibrium = config(equilibrium={"gradient": gradient}).equilibrium
        with pytest.raises(InputError, match="`equilibrium`: .*num_terms"):
            build(equilibrium, task_config("regression"), (4,), seed=0)

    def test_names(self):
        with pytest.raises(InputError, match=r"`tasks.0.name`.*`sorting`"):
            task_config("sortin")
        with pytest.raises(InputError, match=r"variant `a`: .*`implicit`"):
            config(variants={"a": {"equilibrium.gradient": "implicitt"}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = WorkDirectory.start(tmp_path_factory.mktemp("defaults"), config())
    study.run(directory.config, directory)
    return directory


class TestRun:
    def test_learns(self, finished):
        results = json.loads((finished.path / "results.json").read_text())
        assert [result["variant"] for result in results] == ["default", "twin"]
        for result in results:
            # The best constant has a score of 0.
            assert result["score"] > 20.0
            assert result["seconds"] > 0
        default, twin = results
        assert default["residual"] < twin["residual"]
        assert default["evaluations"] <= 5 and twin["evaluations"] == 3
        assert twin["long_evaluations"] == 12

    def test_files(self, finished):
        path = finished.path
        with (path / "summary.csv").open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        assert [row["variant"] for row in rows] == ["default", "twin"]
        assert "less twin's" in (path / "report.txt").read_text()
        folder = path / "regression-default-seed-3"
        with (folder / "history.csv").open(newline="") as lines:
            history = list(csv.DictReader(lines))
        assert len(history) == 10
        assert float(history[-1]["loss"]) < float(history[0]["loss"])
        task = finished.config.tasks[0]
        _, testing = TASKS["regression"].draw(task, 3)
        predictions = keras.models.load_model(folder / "model.keras").predict(
            testing.inputs, verbose=0
        )
        result = json.loads((folder / "result.json").read_text())
        score = explained_variance(predictions, testing.targets)
        assert score == pytest.approx(result["score"], rel=1e-4)

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
        (finished.path / "regression-twin-seed-3" / "result.json").unlink()
        with pytest.raises(RuntimeError, match="trained again"):
            study.run(directory.config, directory)
