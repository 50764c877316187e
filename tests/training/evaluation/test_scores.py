"""`evaluate` measures what the model computes, and so does an exported file."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.solvers import FixedPointSolver
from tests.regimes import slow
from tests.training.experiments.small_jobs import ALL, job
from training import registry
from training.conversion.export import export
from training.evaluation.budgets import equilibrium
from training.evaluation.exported import ExportedFile

BUDGET = 8


@keras.saving.register_keras_serializable("deq_keras_tests.scores")
class Wandering(FixedPointSolver):
    """Leaves the equilibrium before its last evaluation, which is not its best."""

    def step(self, evaluation, memory, num_evaluations):
        value = evaluation.value
        other = -tf.reverse(value, [1])
        return tf.where(num_evaluations % 4 == 3, other, value), memory


def _build(name, tol, folder, monkeypatch):
    """Returns a job, its model, and the list of outputs that the job will score."""
    keras.utils.set_random_seed(0)
    changes = []
    if name in ("language_model", "trellisnet"):
        changes = [("model.memory_length", 0), ("data.evaluation_length", 64)]
    built, scored = job(ALL[name], *changes, folder=folder), []
    model = built.build_model()
    equilibrium(model).solver = Wandering(BUDGET, tol)
    measure = built.measure

    def spy(predict, *arguments):
        def predicted(*request):
            outputs, statistics = predict(*request)
            scored.append(np.asarray(outputs))
            return outputs, statistics

        return measure(predicted, *arguments)

    monkeypatch.setattr(built, "measure", spy)
    return built, model, scored


def _score(built, row):
    return row[registry.find(built.config.experiment).score.name]


def test_all_experiments_are_measured():
    assert {mapping["experiment"] for mapping in ALL.values()} == set(registry.names())


# Functions of datasets are always graphs.
@pytest.mark.filterwarnings("ignore:Even though the")
@pytest.mark.parametrize(
    "tol, is_eager", [(None, True), slow(None, False), slow(0.3, False)]
)
@pytest.mark.parametrize("name", ALL)
def test_scores_at_the_own_budget_equal_predict(
    name, tol, is_eager, tmp_path, few_crops, monkeypatch
):
    tf.config.run_functions_eagerly(is_eager)
    try:
        built, model, scored = _build(name, tol, tmp_path, monkeypatch)
        (row,) = built.measure_model(model, [BUDGET])
        measured = scored.copy()
        (expected,) = built.measure(_predict(model), [BUDGET])
    finally:
        tf.config.run_functions_eagerly(False)
    assert _score(built, row) == pytest.approx(_score(built, expected), rel=1e-4)
    for one, other in zip(measured, scored[len(measured) :]):
        np.testing.assert_allclose(one, other, atol=1e-4)
    if tol is None:
        assert row["evaluations"] == BUDGET


def _predict(model):
    """Returns the outputs of Keras, without statistics of a solve."""
    if hasattr(model, "causal_lm"):  # Keras' `predict` would read strings.
        return lambda tokens, _: (model.causal_lm(tokens), {"evaluations": [0]})
    return lambda inputs, _: (model.predict_on_batch(inputs), {"evaluations": [0]})


@pytest.mark.slow
@pytest.mark.parametrize("tol", [None, 0.3])
@pytest.mark.parametrize("name", ALL)
def test_scores_of_an_exported_file(name, tol, tmp_path, few_crops, monkeypatch):
    built, model, _ = _build(name, tol, tmp_path, monkeypatch)
    rows = built.measure_model(model, [2, BUDGET])
    served = built.prepare_export(model)
    export(*served, tmp_path / "exported", "saved_model")
    exported = ExportedFile(tmp_path / "exported")
    for row, other in zip(rows, built.measure(exported.predict, [2, BUDGET])):
        assert _score(built, other) == pytest.approx(_score(built, row), rel=1e-4)
