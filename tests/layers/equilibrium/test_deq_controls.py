"""The multiplier of a constraint and the training budget of a DEQ layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, regularizers, solvers
from tests.layers.cells import FunctionCell, TanhCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(8, 4)).astype("float32")
TARGETS = RANDOM.normal(size=(8, 1)).astype("float32")
UNREACHABLE = regularizers.ResidualConstraint(1e-9, rate=0.1)
EASY = regularizers.ResidualConstraint(0.9, rate=0.1)


def _model(regularizer=UNREACHABLE, run_eagerly=False, **arguments):
    # The cheapest gradient that runs the solver.
    arguments = {"gradient": gradients.PhantomGradient(1, 1.0), **arguments}
    arguments.setdefault("solver", solvers.Anderson(max_iter=6, tol=None))
    deq = layers.DEQ(
        TanhCell(5), regularizer=regularizer, seed=0, name="deq", **arguments
    )
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    _compile(model, run_eagerly=run_eagerly)
    return model, deq


def _compile(model, **arguments):
    model.compile(optimizer=keras.optimizers.SGD(1e-3), loss="mse", **arguments)


def _fit(model, epochs=2):
    history = model.fit(INPUTS, TARGETS, batch_size=4, epochs=epochs, verbose=0)
    return history.history


@pytest.mark.parametrize(
    "arguments",
    [{"run_eagerly": True}, {}, slow({"jit_compile": True})],
    ids=["eager", "graph", "xla"],
)
def test_the_multiplier_rises_to_its_fastest_and_is_in_the_logs(arguments):
    model, deq = _model()
    _compile(model, **arguments)
    history = _fit(model)
    # Each step multiplies by 4^0.1. The log is the mean of the two steps of an epoch.
    factors = 4.0 ** (0.1 * np.arange(4))
    expected = factors.reshape(2, 2).mean(axis=1)
    np.testing.assert_allclose(history["deq_multiplier"], expected, rtol=1e-5)
    logs = model.evaluate(INPUTS, TARGETS, verbose=0, return_dict=True)
    assert logs["deq_multiplier"] == 0.0


def test_the_multiplier_weights_the_penalty():
    penalties = []
    for rate in (1e-9, 1.0):
        keras.utils.set_random_seed(0)
        constraint = regularizers.ResidualConstraint(1e-9, "jacobian", rate=rate)
        model, _ = _model(constraint, run_eagerly=True)
        penalties.append(_fit(model, 1)["deq_penalty"][0])
    # The multiplier is 1 in the first step and 4 in the second.
    assert 2.0 < penalties[1] / penalties[0] < 3.0


def test_the_gradient_of_the_penalty_updates_the_multiplier():
    model, deq = _model()
    (multiplier,) = deq.control_variables
    with tf.GradientTape() as tape:
        model(INPUTS, training=True)
        (penalty,) = model.losses
    assert float(multiplier) == 1.0
    tape.gradient(penalty, deq.trainable_weights)
    assert float(multiplier) == pytest.approx(4.0**0.1)


@pytest.mark.parametrize("policy", ["mixed_float16", "float64"])
def test_a_multiplier_is_float32_in_any_precision(policy):
    keras.config.set_dtype_policy(policy)
    model, _ = _model(run_eagerly=True)
    history = model.fit(INPUTS[:6], TARGETS[:6], batch_size=4, epochs=1, verbose=0)
    expected = (1.0 + 4.0**0.1) / 2
    np.testing.assert_allclose(history.history["deq_multiplier"], expected, rtol=1e-5)


def test_a_strategy_of_one_replica_trains():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model, deq = _model()
        deq.training_budget = 3
    history = _fit(model, 1)
    np.testing.assert_allclose(
        history["deq_multiplier"], (1.0 + 4.0**0.1) / 2, rtol=1e-5
    )
    assert history["deq_evaluations"] == [3.0]


class Slope(FunctionCell):
    """A linear cell: its slope to the power of the budget is the residual."""

    def __init__(self):
        super().__init__(self._next)

    def build(self, *shapes):
        self.slope = self.add_weight((), keras.initializers.Constant(2.0))

    def _next(self, state, injection):
        return keras.ops.sigmoid(self.slope) * state + injection


def test_the_residual_meets_its_target():
    deq = layers.DEQ(
        Slope(),
        solver=solvers.FixedPointIteration(max_iter=8, tol=None),
        gradient="unrolled",
        regularizer=regularizers.ResidualConstraint(0.02, rate=0.05),
        name="deq",
    )
    model = keras.Sequential([keras.Input((4,)), deq])
    # The loss wants a steep slope, which leaves a large residual.
    model.compile(keras.optimizers.Adam(0.03), loss="mse", loss_weights=0.01)
    data = tf.data.Dataset.from_tensors((INPUTS, 6.0 * INPUTS)).repeat()
    fit = {"steps_per_epoch": 50, "epochs": 6, "shuffle": False, "verbose": 0}
    residuals = model.fit(data, **fit).history["deq_residual"]
    assert residuals[0] > 0.04
    np.testing.assert_allclose(residuals[-1], 0.02, rtol=0.1)


def test_files_hold_the_controls(tmp_path):
    model, deq = _model(run_eagerly=True)
    deq.training_budget = 3
    _fit(model)
    path = tmp_path / "model.keras"
    model.save(path)
    whole = keras.models.load_model(path, custom_objects={"TanhCell": TanhCell})
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    copy, _ = _model(run_eagerly=True)
    copy.load_weights(path)
    for restored in (whole, copy):
        assert restored.get_layer("deq").training_budget == 3
        restored.run_eagerly = True
        first = _fit(restored, 1)["deq_multiplier"][0]
        np.testing.assert_allclose(first, (4.0**0.4 + 4.0**0.5) / 2, rtol=1e-5)


def test_controls_are_not_weights(tmp_path):
    plain, _ = _model(None)
    model, deq = _model()
    deq.training_budget = 3
    assert len(model.weights) == len(plain.weights)
    path = tmp_path / "model.weights.h5"
    plain.save_weights(path)
    model.load_weights(path)
    assert deq.training_budget == 3
    model.save_weights(path)
    other, other_deq = _model(None)
    other.load_weights(path)
    assert other_deq.training_budget == 3


def test_a_constraint_may_replace_a_regularizer_and_keeps_its_multiplier():
    model, deq = _model(None, run_eagerly=True)
    multipliers = []
    for constraint in (None, UNREACHABLE, EASY):
        deq.regularizer = constraint
        _compile(model, run_eagerly=True)
        fit = {"batch_size": 8, "epochs": 2, "verbose": 0}
        history = model.fit(INPUTS, TARGETS, **fit).history
        multipliers += history.get("deq_multiplier", [])
    # A target that is missed raises the multiplier; one that is met lowers it.
    np.testing.assert_allclose(multipliers, 4.0 ** (0.1 * np.array([0, 1, 2, 1])), 1e-5)


@pytest.mark.parametrize(
    "gradient", ["implicit", gradients.TruncatedGradient(num_free_steps=0)], ids=str
)
def test_a_training_budget_applies_without_a_new_trace(gradient):
    traces = []

    class Counting(TanhCell):
        def call(self, state, injection):
            traces.append(tf.executing_eagerly())
            return super().call(state, injection)

    solver = solvers.FixedPointIteration(max_iter=9, tol=None)
    deq = layers.DEQ(Counting(5), solver, gradient, None, name="deq", seed=0)
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    _compile(model)
    deq.training_budget = 9
    log = "deq_evaluations"
    first = _fit(model, 1)[log][0]
    num_traces = len(traces)
    deq.training_budget = 2
    second = _fit(model, 1)[log][0]
    assert len(traces) == num_traces
    if gradient == "implicit":
        assert (first, second) == (9.0, 2.0)
    else:  # Twice the budget has room for the largest number of steps.
        assert second <= first
    deq.training_budget = None
    with pytest.raises(ValueError, match="compile"):
        _fit(model, 1)


@pytest.mark.parametrize("budget", [0, 7, 2.5])
def test_a_budget_that_the_solver_does_not_have_is_refused(budget):
    _, deq = _model()
    with pytest.raises(ValueError, match="`training_budget`.*Received: .*budget="):
        deq.training_budget = budget


def test_a_jitter_lowers_the_training_budget():
    model, deq = _model(max_iter_jitter=3)
    deq.training_budget = 4
    history = _fit(model, 8)
    assert 1 <= min(history["deq_evaluations"]) < max(history["deq_evaluations"]) <= 4
    assert deq.solve(INPUTS).num_evaluations[0] == 6
