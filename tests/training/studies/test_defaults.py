"""The study of the defaults: its models, measurements and tables, and a short run."""

import csv
import json
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.solvers import SolveRequest
from tests.training.studies.small_models import (
    SHORT,
    TWIN,
    config,
    model_of,
    task_config,
)
from training.config import reading as configs
from training.errors import InputError
from training.runs.work_directory import WorkDirectory
from training.studies import study_runs
from training.studies.defaults import model as models
from training.studies.defaults import study
from training.studies.defaults.measure import measure, relative_residual
from training.studies.defaults.model import build, training_peak
from training.studies.defaults.schema import TASKS as NAMES
from training.studies.defaults.table import render, summarize
from training.studies.defaults.tasks import TASKS
from training.studies.defaults.tasks.vectors import explained_variance

# One of each kind; the others take as long each.
FAST = ("digits_dense", "parity")


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
    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
            for name in TASKS
        ],
    )
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
        state = layer.solve(examples.inputs, SolveRequest(max_iter=12)).value.numpy()[
            :4
        ]
        kernel = layer.cell.recurrent.kernel.numpy()
        jacobians = [np.diag(1 - z**2) @ kernel.T for z in state]
        radii = [np.abs(np.linalg.eigvals(jacobian)).max() for jacobian in jacobians]
        assert numbers["spectral_radius"] == pytest.approx(np.mean(radii), rel=0.02)
        assert numbers["largest_spectral_radius"] == pytest.approx(max(radii), rel=0.02)

    @pytest.mark.parametrize("converged", [[True, False, True, True], [False] * 4])
    def test_the_radii_that_were_found(self, monkeypatch, converged):
        def radius(*_, **__):
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


class TestMemory:
    def test_grows_with_what_is_kept(self):
        task = task_config("chain")
        training, _ = TASKS["chain"].draw(task, 0)
        peaks = {}
        for layers in (3, 24):
            variants = {"twin": {**TWIN, "equilibrium.solver.max_iter": layers}}
            equilibrium = configs.variant(config(variants=variants), "twin").equilibrium
            peaks[layers] = training_peak(equilibrium, task, training, seed=0)
        if peaks[3] is None:
            pytest.skip("The allocator keeps no statistics.")
        assert peaks[24] > 2 * peaks[3]

    def test_is_of_the_batch_of_the_task(self, monkeypatch):
        sizes = []

        def growth(call):
            gradients = call()
            sizes.append([gradient.shape for gradient in gradients])
            return 6.0

        monkeypatch.setattr(models, "peak_growth", growth)
        task = task_config("regression")
        training, _ = TASKS["regression"].draw(task, 0)
        equilibrium = config().equilibrium
        peak = training_peak(equilibrium, task, training, seed=0)
        # States of a MiB: 32768 of 8 units.
        assert peak == 6.0 * 64 / 32768
        model, _ = model_of("regression")
        assert sizes == [[weight.shape for weight in model.trainable_weights]]

    @pytest.mark.parametrize("growth", [None, 0.0, 0.9])
    def test_what_statistics_do_not_see_is_not_measurable(self, monkeypatch, growth):
        monkeypatch.setattr(models, "peak_growth", lambda call: growth)
        task = task_config("regression")
        training, _ = TASKS["regression"].draw(task, 0)
        assert training_peak(config().equilibrium, task, training, seed=0) is None


class TestTable:
    RESULTS = [
        {"task": "a", "variant": name, "seed": seed, "score": score}
        for name, scores in {"new": [91.0, 95.0], "twin": [90.0, 92.0]}.items()
        for seed, score in enumerate(scores)
    ]

    def test_gap_is_of_the_same_seed(self):
        new, twin = summarize(self.RESULTS, ["twin"])
        assert (new["task"], new["variant"], new["runs"]) == ("a", "new", 2)
        assert (new["score_mean"], new["gap_mean"]) == (93.0, 2.0)
        assert new["gap_std"] == pytest.approx(2**0.5)
        assert (twin["gap_mean"], twin["gap_std"]) == (0.0, 0.0)

    def test_gap_is_to_the_best_reference(self):
        longer = [
            {**result, "variant": "longer", "score": score}
            for result, score in zip(self.RESULTS[2:], (None, 94.0), strict=True)
        ]
        summaries = summarize(self.RESULTS + longer, ["twin", "longer"])
        gaps = {summary["variant"]: summary["gap_mean"] for summary in summaries}
        assert gaps == {"new": 1.0, "twin": -1.0, "longer": 0.0}

    def test_failed_runs_are_counted_apart(self):
        failed = [result | {"score": None} for result in self.RESULTS[:1]]
        new, twin = summarize(failed + self.RESULTS[1:], ["twin"])
        assert (new["failed"], new["score_mean"], new["gap_mean"]) == (1, 95.0, 3.0)
        assert new["gap_std"] is None and twin["failed"] == 0
        (nothing,) = summarize(failed, ["twin"])
        assert nothing["score_mean"] is None and nothing["gap_mean"] is None

    def test_a_run_whose_radius_was_not_found_has_not_failed(self):
        unknown = {"spectral_radius": None, "spectral_radius_converged": 0.0}
        known = {"spectral_radius": 0.5, "spectral_radius_converged": 1.0}
        results = [
            result | radius
            for result, radius in zip(self.RESULTS[:2], (unknown, known), strict=True)
        ]
        (summary,) = summarize(results, ["twin"])
        assert summary["failed"] == 0 and summary["score_mean"] == 93.0
        assert summary["spectral_radius_mean"] == 0.5
        assert summary["spectral_radius_converged_mean"] == 0.5

    def test_text(self):
        numbers = {"residual": 0.01, "spectral_radius": 0.9, "evaluations": 7.0}
        numbers |= {"spectral_radius_converged": 0.75}
        numbers |= {"long_score": 91.0, "updates": 48, "seconds": 2.0, "memory": None}
        results = [
            result | numbers | {"task": task}
            for task in ("a", "b")
            for result in self.RESULTS[::2]
        ]
        rows = [
            line.split()
            for line in render(summarize(results, ["twin"]), 30).split("\n")
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
                "48",
                "2.0",
                "-",
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
        result |= {"updates": 48, "memory": 0.5}
        result |= dict.fromkeys(("score", "long_score", "residual", "evaluations"), 1.0)
        result |= {"spectral_radius": radius, "spectral_radius_converged": share}
        assert re.search(words, study._line(result))
        assert study._line(result).endswith("(48 updates, 1 s, 0.5 MiB)")
        assert "memory not measurable" in study._line(result | {"memory": None})


class TestBadInput:
    def test_reference(self, tmp_path):
        references = ["twin", "default2"]
        directory = WorkDirectory.start(tmp_path, config(references=references))
        with pytest.raises(InputError, match="`references.1`.*default, twin"):
            study.run(directory.config, directory)

    def test_repeated_task(self, tmp_path):
        directory = WorkDirectory.start(tmp_path, config(tasks=SHORT["tasks"] * 2))
        with pytest.raises(InputError, match="`tasks` must have different names"):
            study.run(directory.config, directory)

    @pytest.mark.parametrize(
        "name", ["digits_pooled", "sorting", "parity", "blobs", "seen_before"]
    )
    def test_units(self, name):
        task = task_config(name, units=6)
        shape = TASKS[name].draw(task, 0)[0].inputs.shape[1:]
        with pytest.raises(InputError, match=f"`tasks.{name}`: "):
            build(config().equilibrium, task, shape, seed=0)

    def test_argument_of_the_gradient(self):
        gradient = {"class_name": "neumann", "num_terms": 0}
        equilibrium = config(equilibrium={"gradient": gradient}).equilibrium
        with pytest.raises(InputError, match="`equilibrium`: .*num_terms"):
            build(equilibrium, task_config("regression"), (4,), seed=0)

    def test_names_of_the_tasks(self):
        assert list(TASKS) == list(NAMES)

    @pytest.mark.parametrize("updates", [0, -1.0, 101, "2", None])
    def test_updates(self, updates):
        with pytest.raises(InputError, match="`updates` must be a number > 0"):
            config(updates=updates)

    def test_names(self):
        with pytest.raises(InputError, match=r"`tasks.0.name`.*`sorting`"):
            task_config("sortin")
        with pytest.raises(InputError, match=r"variant `a`: .*`implicit`"):
            config(variants={"a": {"equilibrium.gradient": "implicitt"}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    chain = {"name": "chain", "units": 4, "epochs": 1}
    chain |= {"train_examples": 64, "test_examples": 20}
    changed = config(
        tasks=[*SHORT["tasks"], chain],
        variants={"default": {}, "twin": {**TWIN, "updates": 1.5}},
    )
    directory = WorkDirectory.start(tmp_path_factory.mktemp("defaults"), changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "training_peak", lambda *_: 2.0)
        study.run(directory.config, directory)
    return directory


class TestRun:
    @pytest.mark.slow
    def test_learns(self, finished):
        results = json.loads((finished.path / "results.json").read_text())
        for result in results:
            assert result["seconds"] > 0
            assert result["memory"] == 2.0
        default, twin = results[:2]
        # The best constant has a score of 0.
        assert default["score"] > 20.0 and twin["score"] > 20.0
        assert default["residual"] < twin["residual"]
        assert default["evaluations"] <= 5 and twin["evaluations"] == 3
        assert twin["long_evaluations"] == 12

    @pytest.mark.slow
    def test_updates(self, finished):
        results = json.loads((finished.path / "results.json").read_text())
        # 16 and 1 an epoch, of 10 and 1 epochs, or half as many again, rounded.
        assert [result["updates"] for result in results] == [160, 240, 1, 2]

    def test_at_least_one_epoch(self):
        few = config(updates=0.01)
        assert study._num_epochs(few, few.tasks[0]) == 1

    def test_memory_is_measured_once(self, monkeypatch, tmp_path):
        known = []

        def finished(directory, name, train, line):
            *_, variant, seed, memory = train.args
            known.append((variant, seed, memory))
            result = {"task": "regression", "variant": variant, "seed": seed}
            numbers = ("score", "long_score", "residual", "evaluations", "seconds")
            result |= dict.fromkeys(numbers, 1.0) | {"memory": 2.0, "updates": 1}
            return result | {"spectral_radius": 0.5, "spectral_radius_converged": 1.0}

        monkeypatch.setattr(study_runs, "finished", finished)
        changed = config(seeds=[3, 4], variants={"twin": TWIN})
        study.run(changed, WorkDirectory.start(tmp_path, changed))
        assert known == [("twin", 3, None), ("twin", 4, 2.0)]

    @pytest.mark.slow
    def test_files(self, finished):
        path = finished.path
        with (path / "summary.csv").open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        runs = [(row["task"], row["variant"]) for row in rows]
        assert runs == [
            (task, variant)
            for task in ("regression", "chain")
            for variant in ("default", "twin")
        ]
        assert "best of twin with the same seed" in (path / "report.txt").read_text()
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

    @pytest.mark.slow
    def test_resumes_without_training_again(self, finished, monkeypatch):
        file = finished.path / "results.json"
        results = file.read_text()
        file.unlink()

        def refuse(*_, **__):
            raise RuntimeError("trained again")

        monkeypatch.setattr(study_runs, "fit", refuse)
        monkeypatch.setattr(study, "training_peak", lambda *_: 2.0)
        directory = WorkDirectory.resume(finished.path, finished.config)
        study.run(directory.config, directory)
        assert file.read_text() == results
        (finished.path / "regression-twin-seed-3" / "result.json").unlink()
        with pytest.raises(RuntimeError, match="trained again"):
            study.run(directory.config, directory)
