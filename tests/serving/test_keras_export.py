"""Files that Keras' `model.export` writes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from deq_keras import layers, serving, solvers

INPUTS = np.random.RandomState(0).normal(size=(3, 4)).astype("float32")
SLOW = pytest.mark.slow


def _gradient(function, inputs):
    inputs = tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(function(inputs))
    return tape.gradient(total, inputs)


def _model(gradient, solver):
    keras.utils.set_random_seed(0)
    deq = layers.DEQ(layers.DenseCell(5), solver, gradient)
    return keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("gradient", "solver"),
    [
        ("implicit", solvers.FixedPointIteration(60, tol=1e-6)),
        pytest.param("truncated", solvers.Anderson(30, tol=1e-6), marks=SLOW),
        pytest.param("reversible", solvers.Broyden(30, tol=1e-6), marks=SLOW),
        pytest.param(
            "implicit", solvers.FixedPointIteration(60, 1e-6, compact=True), marks=SLOW
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_file_has_the_gradient_of_the_equilibrium(gradient, solver, tmp_path):
    """Whatever the model trains with: a file differentiates the steps of the solver."""
    model = _model(gradient, solver)
    model.export(tmp_path / "model", verbose=False)
    file = keras.layers.TFSMLayer(tmp_path / "model", call_endpoint="serve")
    np.testing.assert_allclose(file(INPUTS), model(INPUTS), atol=1e-6)
    exact = _gradient(_model("implicit", solver), INPUTS)
    assert np.abs(exact).max() > 0.1
    np.testing.assert_allclose(_gradient(file, INPUTS), exact, atol=1e-3)
    invalid = np.where([[0], [1], [0]], np.nan, INPUTS)
    expected = np.where([[0], [1], [0]], 0.0, exact)
    np.testing.assert_allclose(_gradient(file, invalid), expected, atol=1e-3)


@SLOW
def test_file_of_the_library_has_the_gradient_of_the_equilibrium(tmp_path):
    model = _model("truncated", solvers.FixedPointIteration(60, tol=1e-6))
    serving.export_saved_model(model, tmp_path / "model")
    file = tf.saved_model.load(tmp_path / "model")
    exact = _gradient(_model("implicit", model.layers[0].solver), INPUTS)
    found = _gradient(lambda x: file.serve(x)["outputs"], INPUTS)
    np.testing.assert_allclose(found, exact, atol=1e-3)


def test_augmentation_is_active_in_files_of_keras_alone(tmp_path):
    augmentation = keras.layers.RandomBrightness(0.5, (0.0, 1.0), seed=0)
    model = keras.Sequential([keras.Input((4, 4, 1)), augmentation])
    images = np.full((2, 4, 4, 1), 0.5, "float32")
    np.testing.assert_array_equal(model.predict(images, verbose=0), images)
    model.export(tmp_path / "keras", verbose=False)
    assert np.ptp(tf.saved_model.load(tmp_path / "keras").serve(images)) > 0.01
    serving.export_saved_model(model, tmp_path / "ours")
    answer = tf.saved_model.load(tmp_path / "ours").serve(images)
    np.testing.assert_array_equal(answer["outputs"], images)


def test_onnx_of_keras_is_refused(tmp_path):
    """Its file would not run. The name of the export that does is in the error."""
    model = _model("implicit", "anderson")
    model(INPUTS)
    with pytest.raises(ValueError, match="serving.export_onnx.*Received"):
        model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("solver", [pytest.param("anderson", marks=SLOW), "broyden"])
def test_litert_of_keras_needs_no_further_operators(solver, tmp_path):
    model, path = _model("implicit", solver), tmp_path / "model.tflite"
    model.export(path, format="litert", verbose=False)
    run = Interpreter(model_path=str(path)).get_signature_runner()
    (outputs,) = run(**dict.fromkeys(run.get_input_details(), INPUTS)).values()
    np.testing.assert_allclose(outputs, model.predict(INPUTS, verbose=0), atol=1e-4)
