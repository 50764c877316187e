"""`BudgetSelection` measures scores at budgets, and sets and saves the best one."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.callbacks import BudgetSelection
from deq_keras.layers import DEQ, DenseCell, EquilibriumCell
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


def _model(make_cell, budgets=(8,), **options):
    layers = [
        DEQ(make_cell(), FixedPointIteration(budget, tol=None), max_iter_jitter=3)
        for budget in budgets
    ]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.R2Score()], **options)
    model.predict(X, verbose=0)
    return model, layers


def _select(model, selection):
    """Trains no epochs."""
    selection.set_model(model)
    selection.on_train_begin()
    selection.on_train_end()


@pytest.mark.parametrize(
    "options",
    [{}, slow({"jit_compile": True}), slow({"run_eagerly": True})],
    ids=["graph", "xla", "eager"],
)
def test_best_budget_is_set_and_saved(options, tmp_path, capsys):
    model, layers = _model(CountingCell, budgets=(8, 8), **options)
    outer = keras.Sequential([model])
    outer.compile("sgd", "mse", metrics=["mae"], **options)
    gradients = [layer.gradient for layer in layers]
    selection = BudgetSelection((ONES, 16 * ONES), "mae", "min", batch_size=8)
    with pytest.warns(UserWarning, match="is 0 at 4 evaluations and 1.637e.04 at 128"):
        _select(outer, selection)
    expected = {k: abs(k**2 - 16) for k in (2, 4, 8, 16, 128)}
    assert selection.scores == pytest.approx(expected)
    assert capsys.readouterr().out == (
        "Validation mae at 2 / 4 / 8 / 16 / 128 evaluations: 12 / 0 / 48 / 240 / "
        "1.637e+04. Selected: 4.\n"
    )
    assert [layer.gradient for layer in layers] == gradients  # "auto" has chosen them.
    for layer in layers:
        assert layer.solver.max_iter == 4 and layer.max_iter_jitter == 3
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    for one in (model, outer, copy):
        assert np.all(one.predict(ONES, verbose=0) == 16.0)


def test_smallest_of_equal_budgets_is_selected():
    model, (layer,) = _model(_halving)
    targets, weights = 2 * X + np.sign(X), np.arange(20, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((X, targets, weights)).batch(8)
    selection = BudgetSelection(data, budgets=(25, 1, 40, 4), verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _select(model, selection)
    for budget, score in selection.scores.items():
        errors = weights * (1 + 2 * 0.5**budget * np.abs(X[:, 0])) ** 2
        np.testing.assert_allclose(score, errors.mean(), rtol=1e-4)
    assert [*selection.scores] == [1, 4, 25, 40] and layer.solver.max_iter == 25


def test_scores_that_are_no_means_of_batches():
    """R^2 in order of the targets, of which each batch knows a part."""
    model, (layer,) = _model(_halving)
    x = np.sort(X, axis=0)
    selection = BudgetSelection((x, 2 * x), "r2_score", "max", (1, 3), 0.2, 4)
    _select(model, selection)
    for budget, score in selection.scores.items():
        expected = 1 - np.sum((2 * 0.5**budget * x) ** 2) / np.sum(
            (2 * (x - x.mean())) ** 2
        )
        np.testing.assert_allclose(score, expected, rtol=1e-4)
    assert layer.solver.max_iter == 3


def test_scores_that_are_not_finite_select_nothing():
    model, (layer,) = _model(_halving)
    with pytest.warns(UserWarning, match="no score is finite"):
        _select(model, BudgetSelection((X, np.nan * X)))
    assert layer.solver.max_iter == 8


@pytest.mark.parametrize(
    "arguments, words",
    [
        (((X, X), "mae"), "`mode`"),
        ((X,), "`validation_data`"),
        ((tf.data.Dataset.from_tensors((X, X)).repeat(),), "`validation_data`"),
        (((X, X), "loss", "min", (0,)), "`budgets`"),
        (((X, X), "val_loss", "min"), "`monitor`.*'loss'"),
    ],
)
def test_bad_argument_raises(arguments, words):
    with pytest.raises(ValueError, match=f"(?s){words}.*Received"):
        BudgetSelection(*arguments)


def test_training_that_does_not_fit_raises_early():
    selection = BudgetSelection((X, X))
    for model in (_model(_halving, (8, 9))[0], keras.Sequential()):
        with pytest.raises(ValueError, match="`budgets`.*Received"):
            _select(model, selection)
    model = keras.Sequential([keras.Input((1,)), DEQ(DenseCell(2))])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`monitor`.*loss.*Received"):
        model.fit(X, X, verbose=0, callbacks=[BudgetSelection((X, X), "acc", "max")])


def test_a_log_of_another_callback_selects_nothing():
    model = keras.Sequential([keras.Input((1,)), DEQ(DenseCell(2))])
    model.compile("sgd", "mse")
    log = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(other=1.0)
    )
    selection = BudgetSelection((X, X), "other", "min", budgets=(2,))
    with pytest.warns(UserWarning, match="`monitor`.*loss.*other"):
        model.fit(X, X, verbose=0, callbacks=[log, selection])
    assert model.layers[0].solver.max_iter == 30
