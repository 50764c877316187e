"""What every layer of the library must do as a Keras layer."""

import os
import pathlib
import subprocess
import sys
import textwrap

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.rounding import full_float32
from deq_keras.solvers import SolveRequest
from deq_keras.testing.cell import functional_model, symbolic

# In place of `keras.Model.run_eagerly`, whatever `compile` says.
ALWAYS_EAGER = property(lambda model: True, lambda model, value: None)

ROOT = pathlib.Path(__file__).parents[1]


def check_round_trip(layer):
    """The config is plain data, and gives a layer of the same config."""
    config = layer.get_config()
    copy = type(layer).from_config(config)
    assert copy.get_config() == config
    serialized = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(serialized)
    assert keras.saving.serialize_keras_object(again) == serialized


def check_symbolic_call(make_layer, inputs):
    """A symbolic call predicts the shapes and dtypes of an eager one, for any batch."""
    layer = make_layer()
    predicted = layer(symbolic(inputs))
    concrete = layer(inputs)
    for spec, tensor in zip(
        tree.flatten(predicted), tree.flatten(concrete), strict=True
    ):
        assert spec.shape[1:] == tuple(tensor.shape[1:])
        assert spec.shape[0] is None
        assert spec.dtype == keras.backend.standardize_dtype(tensor.dtype)


@full_float32()
def check_regimes(make_layer, inputs, tolerance=1e-5):
    """Eager, graph and XLA agree."""
    layer = make_layer()
    eager = layer(inputs)
    for jit_compile in (False, True):
        compiled = tf.function(layer, jit_compile=jit_compile)(inputs)
        assert_close(compiled, eager, tolerance)


@full_float32()
def check_batches(make_layer, inputs):
    """A functional model serves batches of any size, and each sample alike."""
    model = functional_model(make_layer(), inputs)
    whole = model.predict(inputs, batch_size=3, verbose=0)
    alone = model.predict(_first(inputs, 1), verbose=0)
    assert_close(_first(whole, 1), alone, 1e-5)


def check_fit(make_layer, inputs, **compile_arguments):
    """Trains; every trainable weight moves and stays finite. Returns the history."""
    layer = make_layer()
    model = functional_model(layer, inputs)
    before = [weight.numpy() for weight in model.trainable_weights]
    assert before
    targets = tree.map_structure(
        lambda spec: np.ones((_length(inputs), *spec.shape[1:]), "float32"),
        model.output,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2), loss="mse", **compile_arguments
    )
    history = model.fit(
        inputs,
        targets,
        validation_data=(inputs, targets),
        batch_size=3,
        epochs=4,
        verbose=0,
    ).history
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.all(np.isfinite(weight.numpy())), weight.path
        assert np.any(weight.numpy() != old), weight.path
    # With a random penalty in half precision, the loss may rise in an epoch.
    assert min(history["loss"][1:]) < history["loss"][0]
    return history


def check_mixed_precision(make_layer, inputs, policy):
    """Weights in float32, compute in half precision, and the result near float32's."""
    full = make_layer()
    expected = full(inputs)
    layer = make_layer(dtype=policy)
    layer(inputs)
    layer.set_weights(full.get_weights())
    outputs = layer(inputs)
    compute_dtype = keras.dtype_policies.get(policy).compute_dtype
    for leaf in tree.flatten(outputs):
        assert leaf.dtype == compute_dtype
    for weight in layer.trainable_weights:
        assert weight.dtype == "float32"
    assert_close(outputs, expected, 0.1)
    check_fit(lambda: make_layer(dtype=policy), inputs)


@full_float32()
def check_save(make_layer, inputs, folder):
    """A `.keras` file restores a model with the same outputs and weights."""
    model = functional_model(make_layer(), inputs)
    expected = model(inputs)
    path = pathlib.Path(folder) / "model.keras"
    model.save(path)
    restored = keras.saving.load_model(path)
    assert_close(restored(inputs), expected, 1e-6)
    for one, two in zip(model.weights, restored.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    path = pathlib.Path(folder) / "model.weights.h5"
    model.save_weights(path)
    fresh = functional_model(make_layer(), inputs)
    fresh.load_weights(path)
    assert_close(fresh(inputs), expected, 1e-6)


def check_layer(make_layer, inputs, folder):
    """All of the above.

    Args:
        make_layer: function that returns a new layer with the keyword arguments that
            it is given added (`dtype`).
        inputs: array, or dict of arrays, with at least four samples.
        folder: where files may be written.
    """
    check_round_trip(make_layer())
    check_symbolic_call(make_layer, inputs)
    check_regimes(make_layer, inputs)
    check_batches(make_layer, inputs)
    check_fit(make_layer, inputs)
    check_mixed_precision(make_layer, inputs, "mixed_bfloat16")
    check_save(make_layer, inputs, folder)


def gradients(function, sources, cotangents=None):
    """Returns the gradients of the result of a function for tensors and weights."""
    sources = tree.map_structure(
        lambda one: one.value if isinstance(one, keras.Variable) else one, sources
    )
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = function()
    return tape.gradient(value, sources, cotangents)


def assert_close(actual, expected, tolerance):
    """Compares two nests, whatever their precision."""
    tree.assert_same_structure(actual, expected)
    tree.map_structure(
        lambda a, b: np.testing.assert_allclose(
            tf.cast(a, tf.float64), tf.cast(b, tf.float64), rtol=0, atol=tolerance
        ),
        actual,
        expected,
    )


def solution_of(solver, problem, **request):
    """Returns the `Solution` of a problem of the zoo, from its initial state."""
    request = SolveRequest(problem.initial_state, **request)
    return solver.solve(problem.function, request)


def run_in_clean_process(code, *arguments, folder, has_library=False, timeout=240):
    """Runs Python code in a process of its own; returns what it printed.

    Args:
        code: str. The program; fails the test if it does not exit with 0.
        *arguments: strings for `sys.argv`.
        folder: the working directory.
        has_library: bool. Without it, importing `deq_keras` raises ImportError.
        timeout: seconds.
    """
    block = "import sys\nsys.modules['deq_keras'] = None\n"
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT) if has_library else "",
    }
    program = ("" if has_library else block) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def _first(nest, count):
    return tree.map_structure(lambda x: x[:count], nest)


def _length(inputs):
    return len(tree.flatten(inputs)[0])
