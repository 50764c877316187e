"""The figures of training, of single evaluations and of samples."""

import csv
import types

import keras
import numpy as np
import pytest
from keras import ops

import deq_keras
from training.config import reading as configs
from training.files import records
from training.reproduce import equilibria, results, trained
from training.runs.work_directory import WorkDirectory

RUNS = [f"{name}/seed_{seed}" for name in ("plain", "jr") for seed in (0, 1)]


def _row(epoch, **numbers):
    return {"epoch": epoch, "phase": "a", "seconds": 1.0, **numbers}


@pytest.fixture
def directory(tmp_path, small):
    """A work directory with histories: pretraining, then an epoch with an adjoint."""
    small["seeds"] = [0, 1]
    small["variants"] = dict.fromkeys(("explicit", "plain", "jr"), {})
    directory = WorkDirectory.start(tmp_path / "runs", configs.resolve(small))
    for index, name in enumerate(RUNS):
        rows = [
            _row(1, deq_residual=0.5),
            _row(
                2,
                deq_residual=0.1 * 2**index,
                deq_evaluations=6.0 + index,
                deq_adjoint_evaluations=3.0,
                deq_adjoint_residual=0.01,
                val_deq_residual=9.0,
                val_deq_evaluations=9.0,
            ),
        ]
        folder = directory.run(name)
        records.write_csv(folder / records.HISTORY, rows)
    for seed in (0, 1):
        folder = directory.run(f"explicit/seed_{seed}")
        records.write_csv(folder / records.HISTORY, [_row(1, loss=1.0)])
    return directory


def _found():
    sample = {"traces": [[1.0, 0.5, 0.7], [1.0, 0.3, np.nan]], "residuals": [0.5, 0.3]}
    return {run: {**sample, "jacobians": [0.2, 0.1]} for run in RUNS}


def test_rows_of_training_are_means_over_seeds(directory):
    first, second, _, last = trained.training_rows(directory)
    assert (first["network"], first["epoch"], first["residual"]) == ("plain", 1, 0.5)
    assert first["NFE"] is None and first["adjoint residual"] is None
    assert second["residual"] == pytest.approx(0.15)
    assert second["residual std"] == pytest.approx(0.05 * 2**0.5)
    assert (second["NFE"], second["adjoint NFE"]) == (6.5, 3.0)
    assert (last["network"], last["NFE"]) == ("jr", 8.5)


def test_medians_of_evaluations_keep_residuals_that_rise():
    rows = trained.evaluation_rows(_found())
    assert [row["residual"] for row in rows[:3]] == [1.0, 0.4, 0.7]
    assert [row["network"] for row in rows] == ["plain"] * 3 + ["jr"] * 3


@pytest.mark.parametrize("x, ticks_are_whole", [([1, 2], True), ([0.1, 0.2], False)])
def test_evaluations_have_whole_ticks(x, ticks_are_whole):
    panel = results.Panel("x", "y", {"plain": (x, [0.5, 0.7], None)})
    figure = results.curves([panel])
    ticks = figure.axes[0].get_xticks()
    assert all(tick == round(tick) for tick in ticks) == ticks_are_whole


@pytest.mark.parametrize("is_log, low", [(False, [-0.1, 0.5]), (True, [0.05, 0.5])])
def test_bands_are_symmetric_on_their_axis(is_log, low):
    lines = {"plain": ([1, 2], [0.1, 0.5], [0.1 if is_log else 0.2, 0.0])}
    panel = results.Panel("x", "y", lines, is_log)
    (band,) = results.curves([panel]).axes[0].collections
    (outline,) = (path.vertices for path in band.get_paths())
    for x, y in zip([1, 2], low, strict=True):
        assert outline[outline[:, 0] == x, 1].min() == pytest.approx(y)


def test_further_figures_have_files_of_their_own(directory, tmp_path, monkeypatch):
    measured = []

    def fake(directory, runs, folder):
        measured.append((runs, folder))
        return _found()

    monkeypatch.setattr(equilibria, "measure", fake)
    further = trained.further_figures(directory)
    # The explicit network has no equilibrium.
    assert measured == [(RUNS, tmp_path / "equilibria")]
    samples = trained.sample_rows(_found())
    made = results.Results(samples, "", trained.draw_samples, further)
    results.write(tmp_path, "title", made, {})
    for name in ("figure", "training", "evaluations", "samples"):
        for suffix in ("png", "svg"):
            assert (tmp_path / f"{name}.{suffix}").stat().st_size > 1000
    with open(tmp_path / "samples.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(RUNS)
    assert list(rows[0].values()) == ["plain", "0", "0.2", "0.5"]


@keras.saving.register_keras_serializable("tests")
class LinearCell(deq_keras.layers.EquilibriumCell):
    """f(z) = a z + x, of the slope a."""

    def __init__(self, slope, **kwargs):
        super().__init__(**kwargs)
        self.slope = slope

    def initial_state(self, injection):
        return ops.zeros_like(injection)

    def call(self, state, injection):
        return self.slope * state + injection


def test_samples_have_the_residual_at_the_budget_and_the_norm_of_the_jacobian():
    solver = deq_keras.solvers.FixedPointIteration(max_iter=4, tol=0.9)
    layer = deq_keras.DEQ(LinearCell(-0.5), solver, "implicit", None)
    inputs = np.random.RandomState(0).normal(size=(3, 500)).astype("float32")
    opened = types.SimpleNamespace(encode=lambda batch: batch, layer=layer)
    evaluation = types.SimpleNamespace(max_iter=6)
    job = types.SimpleNamespace(
        opened=lambda model: opened,
        config=types.SimpleNamespace(evaluation=evaluation),
    )
    found = equilibria._measurement(job, None)(inputs)
    # Iterates are x times (1 - a^k) / (1 - a), with differences a^k x.
    values = (1 - (-0.5) ** np.arange(1, 7)) / 1.5
    expected = 0.5 ** np.arange(6) / values
    np.testing.assert_allclose(found["traces"], [expected] * 3, rtol=1e-4)
    np.testing.assert_allclose(found["residuals"], expected[3], rtol=1e-4)
    np.testing.assert_allclose(found["jacobians"], 0.25, rtol=0.1)
