"""`BudgetSelection` measures scores at budgets, and sets and saves the best one."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.callbacks import BudgetSelection
from deq_keras.layers import DEQ, EquilibriumCell
from deq_keras.solvers import FixedPointIteration
from tests.layers.cells import FunctionCell
from tests.regimes import slow

ONES = np.ones((20, 1), "float32")
X = np.random.default_rng(0).normal(size=(20, 1)).astype("float32")


@keras.saving.register_keras_serializable("deq_keras_tests")
class CountingCell(EquilibriumCell):
    """Its state after k steps is k u."""

    def call(self, state, injection):
        return state + injection


def _halving():
    """Returns a cell with the equilibrium 2 u."""
    return FunctionCell(lambda z, u: 0.5 * z + u)


def _model(make_cell, num_layers=1, **options):
    solver = FixedPointIteration(max_iter=8, tol=None)
    layers = [
        DEQ(make_cell(), solver, "unrolled", None, max_iter_jitter=3)
        for _ in range(num_layers)
    ]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile("sgd", "mse", metrics=["mae"], **options)
    model.predict(X, verbose=0)
    return model, layers


def _end(model, selection):
    selection.set_model(model)
    selection.on_train_end()


@pytest.mark.parametrize(
    "options",
    [{}, slow({"jit_compile": True}), slow({"run_eagerly": True})],
    ids=["graph", "xla", "eager"],
)
def test_best_budget_is_set_and_saved(options, tmp_path, capsys):
    model, layers = _model(CountingCell, num_layers=2, **options)
    selection = BudgetSelection((ONES, 16 * ONES), "mae", "min", batch_size=8)
    with pytest.warns(UserWarning, match="is 0 at 4 evaluations and 1.637e.04 at 128"):
        _end(model, selection)
    expected = {k: abs(k**2 - 16) for k in (2, 4, 8, 16, 128)}
    assert selection.scores == pytest.approx(expected)
    assert capsys.readouterr().out == (
        "Validation mae at 2 / 4 / 8 / 16 / 128 evaluations: 12 / 0 / 48 / 240 / "
        "1.637e+04. Selected: 4.\n"
    )
    for layer in layers:
        assert layer.solver.max_iter == 4 and layer.max_iter_jitter == 3
    model.save(tmp_path / "model.keras")
    for one in (model, keras.saving.load_model(tmp_path / "model.keras")):
        assert np.all(one.predict(ONES, verbose=0) == 16.0)


def test_smallest_of_equal_budgets_is_selected():
    model, (layer,) = _model(_halving)
    weights = np.arange(20, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((X, 2 * X + np.sign(X), weights)).batch(4)
    selection = BudgetSelection(data, "loss", budgets=(25, 1, 40, 4), verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _end(model, selection)
    for budget, score in selection.scores.items():
        errors = weights * (1 + 2 * 0.5**budget * np.abs(X[:, 0])) ** 2
        np.testing.assert_allclose(score, errors.mean(), rtol=1e-4)
    losses = np.array([*selection.scores.values()]) / min(selection.scores.values())
    assert list(selection.scores) == [1, 4, 25, 40]
    assert losses[0] > losses[1] > 1.005 > losses[2] >= losses[3] == 1.0
    assert layer.solver.max_iter == 25


@pytest.mark.parametrize(
    "arguments, words",
    [
        (((X, X), "mae"), "`mode`"),
        ((X,), "`validation_data`"),
        (((X, X), "loss", "min", (0,)), "`budgets`"),
    ],
)
def test_bad_argument_raises(arguments, words):
    with pytest.raises(ValueError, match=f"{words}.*Received"):
        BudgetSelection(*arguments)


def test_unknown_score_raises():
    selection = BudgetSelection((X, X), "acc", "max")
    with pytest.raises(ValueError, match="`monitor`.*mae.*Received"):
        _end(_model(_halving)[0], selection)
