"""The training budget falls while a score holds."""

import keras
import numpy as np
import pytest

from deq_keras import callbacks, layers, solvers

INPUTS = np.random.RandomState(0).normal(size=(8, 3)).astype("float32")


def _layer():
    solver = solvers.FixedPointIteration(max_iter=20, tol=None)
    return layers.DEQ(layers.DenseCell(4), solver, "implicit", name="deq")


def _budgets(scores, **arguments):
    layer = _layer()
    callback = callbacks.ReduceTrainingBudget(layer, **arguments)
    callback.on_train_begin()
    budgets = []
    for epoch, score in enumerate(scores):
        logs = {"val_loss": score}
        callback.on_epoch_end(epoch, logs)
        assert logs["deq_training_budget"] == layer.training_budget
        budgets.append(layer.training_budget)
    return budgets


@pytest.mark.parametrize(
    "scores, arguments, expected",
    [
        ([3.0, 2.0, 1.0, 1.0], {}, [16, 12, 9, 7]),
        # 1.02 is worse than the best by more than 1 %.
        ([1.0, 1.005, 1.02, 1.0], {}, [16, 12, 15, 12]),
        ([1.0, 9.0, 9.0], {}, [16, 20, 20]),  # The solver has no more.
        ([1.0] * 4, {"factor": 0.5, "min_budget": 6}, [10, 6, 6, 6]),
        ([0.5, 0.6, 0.55], {"mode": "max"}, [16, 12, 15]),
        ([-1.0, -0.5], {}, [16, 20]),
        ([1.0] * 3, {"start_from_epoch": 2}, [20, 20, 16]),
        ([1.0, 1.1], {"tolerance": 0.2}, [16, 12]),
        # NaN does not hold, and is not the best score.
        ([1.0, float("nan"), 0.9, 2.0], {}, [16, 20, 16, 20]),
        ([float("nan"), 1.0, 1.0], {}, [20, 16, 12]),
    ],
)
def test_the_budget_follows_the_score(scores, arguments, expected):
    assert _budgets(scores, **arguments) == expected


def test_a_fit_spends_the_budget():
    layer = _layer()
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    callback = callbacks.ReduceTrainingBudget(layer, monitor="loss", tolerance=1.0)
    history = model.fit(
        INPUTS, INPUTS[:, :1], epochs=3, verbose=0, callbacks=[callback]
    ).history
    assert history["deq_training_budget"] == [16, 12, 9]
    # An epoch has the budget that the one before it left.
    assert history["deq_evaluations"] == [20, 16, 12]


@pytest.mark.parametrize(
    "arguments",
    [{"factor": 1.0}, {"mode": "auto"}, {"tolerance": -1}, {"min_budget": 0}],
)
def test_bad_arguments_are_refused_and_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}={value!r}"):
        callbacks.ReduceTrainingBudget(_layer(), **arguments)


def test_an_unknown_score_is_refused():
    with pytest.raises(ValueError, match="Expected one of.*Received: monitor='val_a'"):
        _budgets([1.0], monitor="val_a")
