"""The metrics and losses of the DEQ layer in Keras' logs."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from tests import harness
from tests.layers.cells import FunctionCell, TanhCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(8, 4)).astype("float32")
TARGETS = RANDOM.normal(size=(8, 1)).astype("float32")


def _model(**arguments):
    keras.utils.set_random_seed(0)
    arguments = {
        "solver": solvers.FixedPointIteration(max_iter=12, tol=1e-3),
        "gradient": "implicit",
        "regularizer": None,
        **arguments,
    }
    deq = layers.DEQ(TanhCell(5), name="deq", **arguments)
    return keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])


def _fit(model, callbacks=(), run_eagerly=True):
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=run_eagerly)
    return model.fit(
        INPUTS,
        TARGETS,
        validation_data=(INPUTS[:4], TARGETS[:4]),
        batch_size=4,
        epochs=2,
        callbacks=list(callbacks),
        verbose=0,
    ).history


@pytest.mark.parametrize("run_eagerly", [False, slow(True)])
def test_history_equals_a_solve_by_hand(run_eagerly):
    model, names = _model(), []

    def note(batch, logs):
        del batch
        names.append((set(logs), set(model.get_metrics_result())))

    note = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    history = _fit(model, [note], run_eagerly)
    for prefix, inputs in (("", INPUTS), ("val_", INPUTS[:4])):
        solution = model.layers[0].solve(inputs)
        expected = {
            "deq_evaluations": np.mean(solution.num_evaluations),
            "deq_residual": np.mean(solution.residual),
            "deq_converged": 1.0,
        }
        for name, value in expected.items():
            # The learning rate is zero, so both epochs and the solve agree.
            np.testing.assert_allclose(history[prefix + name], value, rtol=2e-3)
    assert np.all(np.array(history["deq_adjoint_evaluations"]) > 1)
    assert np.all(np.array(history["deq_adjoint_residual"]) <= 1e-3)
    for name in ("deq_adjoint_evaluations", "deq_adjoint_residual"):
        assert len(history[name]) == 2
        assert history["val_" + name] == [0.0, 0.0]
    assert not np.any(np.isnan(np.concatenate(list(history.values()))))
    # Keras takes an epoch's logs from the metrics of all replicas only if they have
    # the names that the last step had, also where an evaluation was traced last.
    for of_step, of_metrics in names:
        assert "deq_adjoint_residual" in of_step
        assert of_metrics == of_step


def test_training_logs_the_evaluations_of_its_own_steps():
    gradient = gradients.TruncatedGradient(num_steps=3, free_fraction=0.0)
    solver = solvers.FixedPointIteration(max_iter=12)
    model = _model(gradient=gradient, solver=solver)
    history = _fit(model)
    assert history["deq_evaluations"] == [3.0, 3.0]
    evaluations = np.mean(model.layers[0].solve(INPUTS[:4]).num_evaluations)
    np.testing.assert_allclose(history["val_deq_evaluations"], evaluations)
    logs = model.evaluate(INPUTS, TARGETS, verbose=0, return_dict=True)
    assert {name for name in logs if "deq" in name} == {
        "deq_evaluations",
        "deq_residual",
        "deq_converged",
        "deq_failed",
    }


def test_steps_in_a_loop_log_no_nan():
    """TensorFlow cannot record the adjoint in the loop of `steps_per_execution`."""
    model = _model()
    model.compile("sgd", "mse", steps_per_execution=2)
    data = {"x": INPUTS, "y": TARGETS, "batch_size": 4, "epochs": 2, "verbose": 0}
    history = model.fit(validation_data=(INPUTS[:4], TARGETS[:4]), **data).history
    assert "deq_residual" in history and "deq_gradient_error" not in history
    assert np.all(np.isfinite([history[name] for name in history]))


def test_penalty_is_in_the_loss_and_in_the_logs():
    histories = []
    for regularizer in ("jacobian", None):
        model = _model(gradient="phantom", regularizer=regularizer, seed=1)
        histories.append(_fit(model))
    with_penalty, without = histories
    penalty = np.array(with_penalty["deq_penalty"])
    assert np.all(penalty > 0)
    # The penalty counts in training, and only there.
    expected = {"deq_evaluations", "deq_residual", "deq_converged", "deq_failed"}
    expected |= {"val_" + name for name in expected}
    assert {name for name in without if "deq" in name} == expected
    losses = np.array(with_penalty["loss"]) - without["loss"]
    np.testing.assert_allclose(losses, penalty, rtol=1e-3)
    np.testing.assert_allclose(with_penalty["val_loss"], without["val_loss"], rtol=1e-5)


class _NoArgument(keras.Model):
    """A model whose call cannot pass on `training`."""

    def __init__(self, layer):
        super().__init__(name="model")
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


def test_model_without_the_argument_training_warns():
    solver = solvers.FixedPointIteration(max_iter=2)
    model = _NoArgument(layers.DEQ(TanhCell(5), solver, "phantom", name="deq"))
    with pytest.warns(UserWarning, match="`training`"):
        _fit(model, run_eagerly=False)
    model.predict(INPUTS, verbose=0)
    model.evaluate(INPUTS, TARGETS, verbose=0)


def test_gradients_of_predictions_do_not_warn():
    model, inputs = _model(), tf.constant(INPUTS)

    @tf.function
    def saliency():
        return harness.gradients(lambda: model(inputs), inputs)

    assert np.any(saliency() != 0)


@pytest.mark.parametrize("validation_freq", [1, slow(2)])
def test_csv_logs_have_equal_columns_for_training_and_validation(
    tmp_path, validation_freq
):
    gradient = "truncated" if validation_freq == 1 else "implicit"
    model = _model(gradient=gradient, regularizer="auto")
    model.compile("sgd", "mse", run_eagerly=True)
    path = tmp_path / "log.csv"
    model.fit(
        INPUTS,
        TARGETS,
        validation_data=(INPUTS, TARGETS),
        validation_freq=validation_freq,
        epochs=2,
        verbose=0,
        callbacks=[keras.callbacks.CSVLogger(path)],
    )
    header, *_, last = path.read_text().splitlines()
    names = header.split(",")
    of_training = {name for name in names if not name.startswith(("val_", "epoch"))}
    of_validation = {name for name in names if name.startswith("val_")}
    assert {"val_" + name for name in of_training} == of_validation
    assert "deq_penalty" in of_training
    assert np.all(np.isfinite(np.array(last.split(","), "float64")))


def test_layers_of_one_name_have_logs_of_their_own():
    def submodel(max_iter, name):
        solver = solvers.FixedPointIteration(max_iter, tol=None)
        deq = layers.DEQ(TanhCell(3), solver, "phantom", name="deq")
        return keras.Sequential([keras.Input((4,)), deq], name=name)

    inputs = keras.Input((4,))
    first, second = submodel(3, "first"), submodel(5, "second")
    both = keras.layers.Concatenate()([first(inputs), second(inputs)])
    model = keras.Model(inputs, keras.layers.Dense(1)(both))
    history = _fit(model)
    for prefix in ("", "val_"):
        assert history[prefix + "deq_evaluations"] == [3.0, 3.0]
        assert history[prefix + "deq_2_evaluations"] == [5.0, 5.0]
    second.compile("sgd", "mse", run_eagerly=True)
    logs = second.evaluate(INPUTS, np.zeros((8, 3)), verbose=0, return_dict=True)
    assert logs["deq_evaluations"] == 5.0 and "deq_2_evaluations" not in logs


def test_training_compares_with_the_tolerance_of_its_steps():
    """f(z) = z / 2 + u has the residual 1 / (2^(n + 1) - 1) after n steps from 0."""
    cell = FunctionCell(lambda z, u: 0.5 * z + u)
    converged = {}
    for tol in (0.01, 0.0):
        # Six steps leave 0.0079.
        gradient = gradients.TruncatedGradient(
            num_steps=6, num_free_steps=0, tol=tol, free_noise=0.0
        )
        deq = layers.DEQ(cell, gradient=gradient, regularizer=None, name="deq")
        model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
        history = _fit(model)
        converged[tol] = history["deq_converged"]
        assert history["val_deq_converged"] == [1.0, 1.0]
    assert converged == {0.01: [1.0, 1.0], 0.0: [0.0, 0.0]}


def _fit_with_warnings(*cells_and_components, learning_rate=1e-3, epochs=1, **fit):
    deq = layers.DEQ(*cells_and_components, name="deq", seed=0)
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(learning_rate), "mse", **fit)
    inputs = np.resize(INPUTS, (256, 4))
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model.fit(inputs, inputs[:, :1], epochs=epochs, verbose=0)
    return model, [str(warning.message) for warning in record]


def test_only_a_solver_set_after_healthy_training_warns():
    model, messages = _fit_with_warnings(layers.DenseCell(4, seed=0))
    assert not messages
    assert model.history.history["deq_converged"][0] > 0.8
    model.layers[0].gradient = "truncated"
    model.layers[0].solver = "anderson"  # For inference, as `tune` sets it.
    model.compile("adam", "mse", run_eagerly=True)
    model.predict(INPUTS, verbose=0)
    with pytest.warns(UserWarning, match="solver=Anderson"):
        model.fit(INPUTS, TARGETS, verbose=0)


@pytest.mark.parametrize(
    "solver, gradient",
    [
        (solvers.Anderson(12), "truncated"),
        slow(solvers.FixedPointIteration(30, patience=2), "truncated"),
        slow(
            solvers.FixedPointIteration(6), gradients.TruncatedGradient([0] * 6 + [1])
        ),
    ],
)
def test_training_that_ignores_the_solver_warns_once(solver, gradient):
    cell = layers.DenseCell(4, seed=0)
    model, messages = _fit_with_warnings(cell, solver, gradient, run_eagerly=True)
    assert len(messages) == 1 and "Received" in messages[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(INPUTS, verbose=0)
        model.fit(INPUTS, TARGETS, verbose=0)


@pytest.mark.slow
def test_sums_over_many_steps_are_exact_in_half_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    solver = solvers.FixedPointIteration(max_iter=7, tol=None)
    deq = layers.DEQ(layers.DenseCell(4), solver, "phantom", None, name="deq")
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    inputs = np.resize(INPUTS, (400, 4))
    history = model.fit(inputs, inputs[:, :1], batch_size=1, verbose=0).history
    assert history["deq_evaluations"] == [7.0]
