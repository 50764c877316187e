import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.callbacks import EquilibriumDiagnostics
from tests.layers.cells import LinearCell


def fitted(layer, **arguments):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.ones((8, 3), "float32")
    callback = EquilibriumDiagnostics(layer, lambda: x[:2], **arguments)
    return model.fit(x, 3 * x, epochs=2, verbose=0, callbacks=[callback]).history


def test_logs_the_radius_and_the_norm_of_each_epoch():
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="balance")
    history = fitted(layer)
    radii = history["balance_spectral_radius"]
    assert radii[-1] == pytest.approx(float(layer.cell.rate), rel=1e-3)
    assert radii[0] != radii[1]
    # Of a multiple of the identity, norm / sqrt(dimensions) is its factor.
    np.testing.assert_allclose(history["balance_jacobian_norm"], radii, rtol=0.3)
    assert history["balance_spectral_radius_converged"] == [1.0, 1.0]


def test_measures_as_rarely_as_it_is_told():
    callback = EquilibriumDiagnostics(
        deq_keras.layers.DEQ(LinearCell(), name="deq"), lambda: 0.0, freq=2
    )
    callback._measure = lambda *_: {"spectral_radius": 0.5}
    for epoch, expected in enumerate([{"deq_spectral_radius": 0.5}, {}]):
        logs = {}
        callback.on_epoch_end(epoch, logs)
        assert logs == expected


class CycleCell(deq_keras.layers.EquilibriumCell):
    """f(z, x) = z / 2 where x is positive, and z moved round a circle elsewhere."""

    def call(self, state, injection):
        return keras.ops.where(injection > 0, 0.5 * state, keras.ops.roll(state, 1, 1))


@pytest.mark.parametrize("signs, share", [((1, -1, -1, -1), 0.25), ((-1, -1), 0.0)])
def test_the_mean_is_of_the_radii_that_were_found(signs, share):
    layer = deq_keras.layers.DEQ(CycleCell(), regularizer=None, name="deq")
    x = np.ones((len(signs), 40), "float32") * np.array(signs, "float32")[:, None]
    layer(x)
    callback = EquilibriumDiagnostics(layer, lambda: x, num_iterations=15)
    logs = {}
    callback.on_train_begin()
    callback.on_epoch_end(0, logs)
    assert logs["deq_spectral_radius_converged"] == share
    expected = 0.5 if share else float("nan")
    assert logs["deq_spectral_radius"] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            {"max_iter": 0},
            "`max_iter` must be a positive integer. Received: max_iter=0",
        ),
        ({"freq": 0}, "`freq` must be a positive integer. Received: freq=0"),
        ({"num_iterations": 1.5}, "`num_iterations` must be a positive integer"),
        ({"inputs": None}, "`inputs` must be inputs of `model`.*Received: inputs=None"),
        ({"model": keras.Sequential()}, "one DEQ layer.*with 0 DEQ layers"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    layer = deq_keras.layers.DEQ(LinearCell())
    with pytest.raises(ValueError, match=words):
        EquilibriumDiagnostics(**{"model": layer, "inputs": lambda: None, **arguments})


def test_takes_the_model_and_arrays():
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="deq")
    model = keras.Sequential([keras.layers.Rescaling(2.0), layer])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.ones((8, 3), "float32")
    callback = EquilibriumDiagnostics(model, x[:2])
    history = model.fit(x, 6 * x, verbose=0, callbacks=[callback]).history
    assert history["deq_spectral_radius"][0] == pytest.approx(
        float(layer.cell.rate), rel=1e-3
    )


def test_calls_the_function_at_every_measurement():
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="deq")
    embedding = keras.layers.Embedding(4, 3, mask_zero=True)
    tokens = np.array([[1, 2, 3], [1, 0, 0]])
    # With one state, |df/dz| is proportional to the root of the unmasked positions.
    model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, layer])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    rows = iter([0, 1])

    def inputs():
        row = next(rows)
        encoded = embedding(tf.constant(tokens[row : row + 1]))
        assert isinstance(encoded.numpy(), np.ndarray)
        return encoded

    callback = EquilibriumDiagnostics(layer, inputs)
    y = np.zeros((2, 3, 3), "float32")
    history = model.fit(tokens, y, epochs=2, verbose=0, callbacks=[callback]).history
    whole, padded = history["deq_jacobian_norm"]
    assert whole == pytest.approx(0.5, rel=0.3)
    assert padded == pytest.approx(0.5 / np.sqrt(3), rel=0.3)


def test_samples_with_non_finite_inputs_do_not_count():
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="deq")
    model = keras.Sequential([layer])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.ones((8, 3), "float32")
    inputs = np.stack([x[0], np.nan * x[0]])
    callback = EquilibriumDiagnostics(layer, inputs)
    history = model.fit(x, 3 * x, verbose=0, callbacks=[callback]).history
    rate = float(layer.cell.rate)
    assert history["deq_spectral_radius"][0] == pytest.approx(rate, rel=1e-3)
    assert history["deq_spectral_radius_converged"] == [0.5]
    assert history["deq_jacobian_norm"][0] == pytest.approx(rate, rel=0.4)
