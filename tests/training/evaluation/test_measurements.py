"""`evaluate` and the report show what direct solves and Keras measure."""

import json
import types

import keras
import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.diagnostics import split_model
from deq_keras.solvers import SolveRequest
from training.config import reading as configs
from training.data import images as datasets
from training.errors import InputError
from training.evaluation.budgets import measure_at_budgets, predictor
from training.evaluation.diagnose import Diagnosis
from training.evaluation.exported import ExportedFile
from training.evaluation.report import report
from training.experiments.classification.job import accuracy
from training.files import records
from training.runs.work_directory import WorkDirectory


@pytest.fixture(scope="module")
def model(finished_run):
    return keras.models.load_model(finished_run.run("equilibrium") / "model.keras")


@pytest.fixture(scope="module")
def split(finished_run):
    return datasets.load(finished_run.config.data).test


@pytest.fixture(scope="module")
def predict(model):
    """The outputs of the model at budgets, of one graph for all tests."""
    return predictor(model)


def _accuracies(predict, split, budgets, batch_size=256):
    batches = datasets.evaluation_batches(split, batch_size)
    return measure_at_budgets(predict, batches, accuracy, budgets)


def test_accuracy_equals_keras(model, predict, split):
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    logs = model.evaluate(
        split.images.astype("float32"), split.labels, verbose=0, return_dict=True
    )
    (row,) = _accuracies(predict, split, [4])
    assert row["accuracy"] == pytest.approx(logs["accuracy"], abs=1e-6)
    assert row["residual"] == pytest.approx(logs["deq_residual"], rel=1e-3)
    assert row["evaluations"] == pytest.approx(logs["deq_evaluations"])


def test_batch_size_does_not_change_the_accuracy(predict, split):
    whole = _accuracies(predict, split, [1, 3, 4])
    parts = _accuracies(predict, split, [1, 3, 4], batch_size=7)
    for left, right in zip(whole, parts, strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    assert [row["evaluations"] for row in whole[:2]] == [1, 3]
    assert whole[0]["residual"] > whole[1]["residual"]


def test_latencies_are_of_warm_requests(monkeypatch):
    calls = []

    def serve(inputs, max_iter):
        calls.append((len(inputs), max_iter))
        statistics = dict.fromkeys(("evaluations", "residual", "status"), np.zeros(3))
        return {"outputs": inputs, **statistics}

    serve.options = {"max_iter": tf.TensorSpec((), "int32")}
    serve.max_iter_limit = 30
    monkeypatch.setattr(deq_keras.serving, "load", lambda path: serve)
    exported = ExportedFile("exported")
    for size in (3, 2):
        exported.predict(np.zeros((size, 1)), 4)
    # The nth request of a budget takes n seconds.
    stamps = [t for n in range(1, 21) for t in (0.0, float(n))]
    monkeypatch.setattr("time.perf_counter", iter([*stamps, *stamps]).__next__)
    num_requests, num_samples, quantiles = exported.latencies([1, 30])
    assert (num_requests, num_samples) == (20, 3)
    assert quantiles == {1: [10.5, 19.05], 30: [10.5, 19.05]}
    assert calls[2:] == [(3, 1)] * 21 + [(3, 30)] * 21
    with pytest.raises(InputError, match="up to 30.*Received: a budget of 31"):
        exported.predict(np.zeros((3, 1)), 31)


def test_export_of_explicit_layers_raises(monkeypatch):
    explicit = types.SimpleNamespace(options={})
    monkeypatch.setattr(deq_keras.serving, "load", lambda path: explicit)
    with pytest.raises(InputError, match="accepts no budget"):
        ExportedFile("exported")


def test_diagnosis_agrees_with_direct_solves(model, split):
    parts = split_model(model)
    images = split.images[:6].astype("float32")
    batches = [images[:3], images[3:]]
    result = Diagnosis(parts.layer, parts.encode, max_iter=5).of(batches)
    inputs = parts.encode(images)
    residuals = parts.layer.solve(inputs, SolveRequest(max_iter=5, tol=0.0)).residual
    assert len(result["residual_quantiles"]) == 5
    assert result["residual_quantiles"][-1]["q50"] == pytest.approx(
        np.median(residuals), rel=1e-3
    )
    medians = [row["q50"] for row in result["residual_quantiles"]]
    assert medians == sorted(medians, reverse=True)
    assert result["evaluations"] <= 5
    radius = result["spectral_radius"]
    assert 0 < radius["q10"] <= radius["q50"] <= radius["q90"]
    assert 0 <= radius["converged"] <= 1
    assert len(result["samples"]) == 6
    residuals = parts.layer.solve(inputs, SolveRequest(tol=0.0)).residual.numpy()
    for index, row in enumerate(result["samples"]):
        assert row["residual"] == pytest.approx(residuals[index], rel=1e-3)
        assert row["jacobian_norm"] > 0


@pytest.mark.parametrize(
    "converged, expected",
    [
        ([True, False, True], {"mean": 0.5, "q50": 0.5, "converged": 2 / 3}),
        ([False] * 3, {"mean": None, "q50": None, "q90": None, "converged": 0.0}),
    ],
)
def test_diagnosis_of_reliable_radii(model, split, monkeypatch, converged, expected):
    def radius(_):
        values = tf.constant([0.4, 7.0, 0.6])
        return deq_keras.diagnostics.SpectralRadius(
            values, values, tf.constant(converged), tf.constant(1)
        )

    monkeypatch.setattr(deq_keras.diagnostics, "spectral_radius", radius)
    parts = split_model(model)
    images = split.images[:3].astype("float32")
    result = Diagnosis(parts.layer, parts.encode, max_iter=2).of([images])
    received = result["spectral_radius"]
    assert {name: received[name] for name in expected} == pytest.approx(expected)


def test_files_of_a_run(finished_run):
    names = {file.name for file in finished_run.path.iterdir()}
    assert {"accuracy.png", "config.yaml", "history.png", "report.txt"} <= names
    for variant in finished_run.config.variants:
        names = {file.name for file in finished_run.run(variant).iterdir()}
        models = {"best.keras", "checkpoint.npz", "model.keras", "samples.npz"}
        tables = {"diagnosis.json", "evaluation.json", "history.csv", "residuals.csv"}
        assert names == models | tables | {"history.png", "residuals.png"}
    image = matplotlib.image.imread(finished_run.path / "accuracy.png")
    assert image[..., :3].std() > 0.05


def test_report_shows_what_was_measured(finished_run):
    text = report(finished_run)
    assert text + "\n" == (finished_run.path / "report.txt").read_text()
    path = finished_run.run("tied") / "evaluation.json"
    rows = json.loads(path.read_text())["budgets"]
    assert text.startswith(
        "Images are normalized with the published statistics of digits.\n\n"
    )
    lines = [line.split() for line in text.splitlines() if line.startswith("tied")]
    assert ["tied", "1", "/", "1"] == lines[0][:4]
    assert lines[1][1:] == [f"{100 * row['accuracy']:.1f}" for row in rows]


def test_weight_tied_twin_runs_three_layers(finished_run):
    path = finished_run.run("tied") / "history.csv"
    header, row = (line.split(",") for line in path.read_text().splitlines())
    history = dict(zip(header, row, strict=True))
    assert float(history["deq_evaluations"]) == 3
    assert "deq_adjoint_residual" not in history


def test_report_counts_the_epochs_of_phases_in_steps(tmp_path, small):
    small["phases"] = [{"epochs": 1}, {"steps": 8}]
    directory = WorkDirectory.start(tmp_path, configs.resolve(small))
    (name,) = directory.config.variants
    folder = directory.run(name)
    rows = [{"epoch": epoch, "seconds": 1.0} for epoch in (1, 2, 3)]
    records.write_csv(folder / records.HISTORY, rows)
    assert "  3 / - (1 epochs + 8 steps)  " in report(directory)
    (folder / records.MODEL).touch()
    assert "  3 / 3  " in report(directory)


@pytest.mark.parametrize(
    "radius, cells",
    [
        ({"mean": 0.51, "q90": 0.72, "converged": 1.0}, ["0.510", "0.720", "100%"]),
        ({"mean": 0.51, "q90": 0.72, "converged": 0.75}, ["~0.510", "~0.720", "75%"]),
        ({"mean": None, "q90": None, "converged": 0.0}, ["-", "-", "0%"]),
    ],
    ids=["all", "some", "none"],
)
def test_report_marks_unreliable_radii(tmp_path, small, radius, cells):
    directory = WorkDirectory.start(tmp_path, configs.resolve(small))
    diagnosis = {"evaluations": 3.0, "residual": 0.01, "converged": 1.0}
    quantiles = {"budget": 1, "q25": 0.5, "q50": 0.6, "q75": 0.7}
    diagnosis |= {"residual_quantiles": [quantiles], "spectral_radius": radius}
    diagnosis["samples"] = [{"residual": 0.1, "jacobian_norm": 0.2}]
    (name,) = directory.config.variants
    file = directory.run(name) / "diagnosis.json"
    file.write_text(json.dumps(diagnosis))
    table = report(directory).split("\n\n")[-1].splitlines()
    assert table[1].endswith("radius found")
    assert table[2].split()[-3:] == cells
    assert table[-1].startswith("~: ") == any(cell[0] == "~" for cell in cells)
