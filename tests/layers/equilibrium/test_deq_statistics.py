"""The metrics and losses of the DEQ layer in Keras' logs."""

import itertools

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


def _model(**arguments):
    arguments = {
        "solver": solvers.Anderson(max_iter=12, tol=1e-3),
        "gradient": "implicit",
        "regularizer": None,
        **arguments,
    }
    deq = layers.DEQ(TanhCell(5), name="deq", **arguments)
    return keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])


def _fit(model, callbacks=(), **arguments):
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse", **arguments)
    return model.fit(
        INPUTS,
        TARGETS,
        validation_data=(INPUTS[:4], TARGETS[:4]),
        batch_size=4,
        epochs=2,
        callbacks=list(callbacks),
        verbose=0,
    ).history


@pytest.mark.parametrize(
    "arguments", [{"run_eagerly": True}, {}, slow({"jit_compile": True})]
)
def test_history_equals_a_solve_by_hand(arguments):
    model, names = _model(), []

    def note(batch, logs):
        del batch
        names.append((set(logs), set(model.get_metrics_result())))

    note = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    history = _fit(model, [note], **arguments)
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
        assert "val_" + name not in history
    assert not np.any(np.isnan(np.concatenate(list(history.values()))))
    # Keras takes an epoch's logs from the metrics of all replicas only if they have
    # the names that the last step had, also where an evaluation was traced last.
    for of_step, of_metrics in names:
        assert "deq_adjoint_residual" in of_step
        assert of_metrics == of_step


@pytest.mark.parametrize("arguments", [slow({"run_eagerly": True}), {}])
def test_steps_of_the_gradient_are_no_evaluations_of_the_solver(arguments):
    gradient = gradients.TruncatedGradient(num_steps=3, free_fraction=0.0)
    model = _model(gradient=gradient)
    history = _fit(model, **arguments)
    assert history["deq_steps"] == [3.0, 3.0]
    evaluations = np.mean(model.layers[0].solve(INPUTS[:4]).num_evaluations)
    np.testing.assert_allclose(history["val_deq_evaluations"], evaluations)
    assert not {"deq_evaluations", "val_deq_steps"} & set(history)
    logs = model.evaluate(INPUTS, TARGETS, verbose=0, return_dict=True)
    assert {name for name in logs if "deq" in name} == {
        "deq_evaluations",
        "deq_residual",
        "deq_converged",
    }


class UnitProbes(regularizers.JacobianRegularizer):
    """The Frobenius norm without chance: every unit vector in turn."""

    def __init__(self, weight, size):
        super().__init__(weight, num_probes=size)
        self.rows = itertools.cycle(np.sqrt(size) * np.eye(size, dtype="float32"))

    def probe(self, value, seed):
        return tf.zeros_like(value) + next(self.rows)


def test_the_jacobian_loss_is_in_the_loss_and_in_the_logs():
    regularizer = UnitProbes(3.0, size=5)
    model = _model(gradient="phantom", regularizer=regularizer, seed=1)
    model.set_weights(_reference_weights(model))
    other = _model(gradient="phantom")
    other.set_weights(_reference_weights(model)[: len(other.get_weights())])
    history = _fit(model, run_eagerly=True)
    jacobian = np.array(history["deq_penalty"])
    assert np.all(jacobian > 0)
    # The penalty counts in training, and only there.
    without = _fit(other, run_eagerly=True)
    expected = {"deq_evaluations", "deq_residual", "deq_converged"}
    expected |= {"val_" + name for name in expected}
    assert {name for name in without if "deq" in name} == expected
    np.testing.assert_allclose(
        np.array(history["loss"]) - without["loss"], jacobian, rtol=1e-3
    )
    np.testing.assert_allclose(history["val_loss"], without["val_loss"], rtol=1e-5)
    deq = model.layers[0]
    point = deq.solve(INPUTS).point
    slopes = 1 - np.square(deq.cell(point, deq.cell.inject(INPUTS)))
    kernel = deq.cell.recurrent.kernel.numpy()
    squares = np.square(slopes)[:, None, :] * np.square(kernel)[None]
    np.testing.assert_allclose(
        jacobian, 3.0 * squares.sum((1, 2)).mean() / 5, rtol=1e-3
    )


def _reference_weights(model):
    random = np.random.RandomState(5)
    return [
        random.normal(size=w.shape) * 0.3 if w.dtype.kind == "f" else w
        for w in model.get_weights()
    ]


@pytest.mark.slow
def test_the_jacobian_loss_lowers_the_jacobian():
    norms = {}
    for weight in (0.0, 5.0):
        keras.utils.set_random_seed(0)
        model = _model(regularizer=regularizers.JacobianRegularizer(weight), seed=1)
        model.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
        model.fit(INPUTS, TARGETS, epochs=25, verbose=0)
        norms[weight] = np.linalg.norm(model.layers[0].cell.recurrent.kernel.numpy())
    assert norms[5.0] < 0.7 * norms[0.0]


def test_budgets_show_in_the_statistics():
    solver = solvers.FixedPointIteration(max_iter=3, tol=1e-9)
    adjoint = gradients.ImplicitGradient(solvers.FixedPointIteration(max_iter=2, tol=0))
    history = _fit(_model(solver=solver, gradient=adjoint))
    np.testing.assert_array_equal(history["deq_evaluations"], 3.0)
    np.testing.assert_array_equal(history["deq_converged"], 0.0)
    np.testing.assert_array_equal(history["deq_adjoint_evaluations"], 2.0)
    assert np.all(np.array(history["deq_adjoint_residual"]) > 1e-4)


def _expansive_model(gradient):
    """f never comes near an equilibrium: period two around the origin."""
    cell = FunctionCell(lambda z, u: -1.05 * z + u)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(6), gradient, None, name="deq")
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), deq])


class _NoArgument(keras.Model):
    """A model whose call cannot pass on `training`."""

    def __init__(self, layer):
        super().__init__(name="model")
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


def test_a_model_that_cannot_train_warns():
    model = _NoArgument(layers.DEQ(TanhCell(5), name="deq"))
    with pytest.warns(UserWarning, match="'deq'.*_NoArgument has no argument `train"):
        _fit(model)
    model.predict(INPUTS, verbose=0)
    model.evaluate(INPUTS, TARGETS, verbose=0)

    @tf.function
    def saliency(model):
        with tf.GradientTape() as tape:
            inputs = tf.constant(INPUTS)
            tape.watch(inputs)
            outputs = model(inputs)
        return tape.gradient(outputs, inputs)

    saliency(_model())


# Elsewhere, tests ignore this warning.
@pytest.mark.filterwarnings("error:Implicit gradients were taken:UserWarning")
def test_other_gradients_and_evaluation_do_not_warn():
    model = _expansive_model("unrolled")
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    model.fit(INPUTS, INPUTS, epochs=2, verbose=0)
    model = _expansive_model("implicit")
    model.compile(loss="mse")
    for _ in range(2):
        model.evaluate(INPUTS, INPUTS, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_sums_over_many_steps_are_exact_in_half_precision(policy):
    keras.config.set_dtype_policy(policy)
    solver = solvers.FixedPointIteration(max_iter=7, tol=None)
    deq = layers.DEQ(layers.DenseCell(4), solver, "phantom", None, name="deq")
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    inputs = np.resize(INPUTS, (400, 4))
    history = model.fit(inputs, inputs[:, :1], batch_size=1, verbose=0).history
    assert history["deq_evaluations"] == [7.0]
