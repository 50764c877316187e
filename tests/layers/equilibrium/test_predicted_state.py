"""Solves that start where a layer predicts their equilibrium."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, initial_states, layers, multistart, solvers
from tests.layers.cells import FunctionCell, TanhCell, TwoScaleCell

INPUTS = np.random.RandomState(0).normal(size=(6, 4)).astype("float32")
ONCE = solvers.FixedPointIteration(max_iter=1, tol=None)


def _linear_deq(gradient="phantom", weight=1.0, **arguments):
    """f(z, u) = z / 2 + u has the equilibrium 2 u, which a dense layer can predict."""
    cell = FunctionCell(lambda z, u: 0.5 * z + u, tf.zeros_like)
    predictor = keras.layers.Dense(4, kernel_initializer="identity")
    return layers.DEQ(
        cell,
        solvers.FixedPointIteration(max_iter=40, tol=1e-4),
        gradient,
        regularizer=None,
        initial_state=initial_states.Predicted(predictor, weight),
        **arguments,
    )


def test_every_call_starts_at_the_prediction():
    deq = _linear_deq()
    deq.solver = ONCE
    expected = 1.5 * INPUTS  # One evaluation at z = u.
    for training in (False, True):
        np.testing.assert_allclose(deq(INPUTS, training=training), expected, rtol=1e-6)
    np.testing.assert_array_equal(deq.solve(INPUTS).point, INPUTS)
    np.testing.assert_array_equal(
        deq.solve(INPUTS, solvers.SolveRequest("zeros")).point, 0.0
    )
    np.testing.assert_array_equal(
        multistart.solve(deq, INPUTS, restarts=1).value, deq.solve(INPUTS).value
    )


@pytest.mark.parametrize(
    "gradient",
    [
        "implicit",
        "neumann",
        "phantom",
        "unrolled",
        gradients.TruncatedGradient(3, 0),
        gradients.ReversibleGradient(),
    ],
    ids=str,
)
def test_only_its_own_loss_trains_the_predictor(gradient):
    """The closed form: d/dK of weight * mean((z* - x K)^2)."""
    deq = _linear_deq(gradient, weight=0.5)
    inputs = tf.constant(INPUTS)
    deq(inputs)
    kernel, bias = deq.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        value = deq(inputs, training=True)
        task = tf.reduce_sum(value)
        (own,) = deq.losses
    sources = [kernel.value, bias.value]
    assert tape.gradient(task, sources) == [None, None]
    assert tape.gradient(own, inputs) is None
    distance = INPUTS - value.numpy()  # The predictor is the identity.
    np.testing.assert_allclose(own, 0.5 * np.mean(distance**2), rtol=1e-5)
    expected = INPUTS.T @ distance / distance.size
    np.testing.assert_allclose(tape.gradient(own, sources)[0], expected, atol=1e-6)
    assert np.any(tape.gradient(task, inputs) != 0)


@pytest.mark.slow
def test_a_trained_predictor_saves_evaluations_and_is_saved(tmp_path):
    # f(z, x) = (z + x) / 2 is fixed, so that only the predictor trains.
    half = keras.layers.Dense(
        4, use_bias=False, kernel_initializer=keras.initializers.Identity(0.5)
    )
    half.trainable = False
    deq = layers.DEQ(
        layers.cell_from(half),
        solvers.FixedPointIteration(max_iter=40, tol=1e-4),
        "phantom",
        regularizer=None,
        initial_state=initial_states.Predicted(keras.layers.Dense(4)),
        name="deq",
    )
    model = keras.Sequential([keras.Input((4,)), deq])
    model.compile(keras.optimizers.Adam(0.2), "mse")
    targets = INPUTS
    before = model.evaluate(INPUTS, targets, verbose=0, return_dict=True)
    model.fit(INPUTS, targets, epochs=60, verbose=0)
    after = model.evaluate(INPUTS, targets, verbose=0, return_dict=True)
    assert after["deq_evaluations"] <= before["deq_evaluations"] - 3
    assert after["loss"] < 1e-5  # The penalty is a loss of training only.
    shuffled = deq.request(deq.problem(INPUTS[::-1])).initial_state
    control = deq.solve(INPUTS, solvers.SolveRequest(shuffled)).num_evaluations
    assert np.mean(control) > after["deq_evaluations"] + 3
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = model.predict(INPUTS, verbose=0)
    np.testing.assert_array_equal(loaded.predict(INPUTS, verbose=0), expected)
    np.testing.assert_array_equal(
        loaded.layers[0].solve(INPUTS).num_evaluations,
        deq.solve(INPUTS).num_evaluations,
    )
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "export"))
    np.testing.assert_allclose(exported.serve(INPUTS), expected, rtol=1e-6)


def test_a_predictor_of_several_inputs_and_states():
    inputs = {"x": INPUTS, "y": INPUTS}
    state = layers.DEQ(TwoScaleCell(3), ONCE).solve(inputs).point
    symbolic = {name: keras.Input((4,), name=name) for name in inputs}
    leaves = [
        keras.layers.Reshape(leaf.shape[1:])(
            keras.layers.Dense(int(np.prod(leaf.shape[1:])))(symbolic["x"])
        )
        for leaf in keras.tree.flatten(state)
    ]
    predictor = keras.Model(symbolic, keras.tree.pack_sequence_as(state, leaves))
    deq = layers.DEQ(
        TwoScaleCell(3), ONCE, initial_state=initial_states.Predicted(predictor)
    )
    expected = keras.tree.flatten(predictor(inputs))
    for leaf, one in zip(
        keras.tree.flatten(deq.solve(inputs).point), expected, strict=True
    ):
        np.testing.assert_array_equal(leaf, one)


def test_unusable_samples_and_padding_do_not_train_the_predictor():
    deq = _linear_deq()
    inputs = INPUTS.copy()
    deq(inputs, training=True)
    clean = deq.losses[0].numpy()
    inputs[2] = np.nan
    deq(inputs, training=True)
    rows = np.delete(INPUTS, 2, axis=0)
    np.testing.assert_allclose(deq.losses[0] * 6 / 5, np.mean(rows**2), rtol=1e-3)
    assert clean > 0
    sequence = np.stack([INPUTS, INPUTS], axis=1)
    mask = np.array([[True, False]] * 6)
    deq = _linear_deq()
    state = deq.request(deq.problem(sequence, mask)).initial_state.numpy()
    np.testing.assert_array_equal(state[:, 1], 0.0)
    np.testing.assert_array_equal(state[:, 0], INPUTS)


def test_mixtures_predict():
    predicted = initial_states.Predicted(
        keras.layers.Dense(4, kernel_initializer="ones")
    )
    mixed = initial_states.Mixed([predicted, "normal"])
    deq = layers.DEQ(TanhCell(4), ONCE, initial_state=mixed, seed=0)
    expected = np.sum(INPUTS, axis=1, keepdims=True) * np.ones(4)
    np.testing.assert_allclose(deq.solve(INPUTS).point, expected, rtol=1e-5)
    request = solvers.SolveRequest(seed=3)
    is_predicted = np.isclose(deq.solve(INPUTS, request).point, expected).all(axis=1)
    assert 0 < is_predicted.sum() < 6
    with pytest.raises(ValueError, match="At most one .* learned or predicted"):
        initial_states.Mixed(["learned", predicted])


@pytest.mark.parametrize(
    "predictor, message",
    [
        (keras.layers.Dense(5), r"output of .*shape=\(6, 4\).*shape=\(6, 5\)"),
        (keras.layers.Dense(4, dtype="float64"), "dtype=float32.*dtype=float64"),
        (keras.layers.Lambda(lambda x: {"z": x}), "must have the structure"),
    ],
)
def test_a_prediction_that_is_no_state_is_refused(predictor, message):
    deq = layers.DEQ(TanhCell(4), initial_state=initial_states.Predicted(predictor))
    with pytest.raises(ValueError, match=message):
        deq(INPUTS)


def test_errors():
    with pytest.raises(ValueError, match="`layer` must be a Keras layer.*None"):
        initial_states.get("predicted")
    with pytest.raises(ValueError, match="`weight` must be .* > 0"):
        initial_states.Predicted(keras.layers.Dense(4), weight=0.0)
    deq = layers.DEQ(TanhCell(4))
    deq(INPUTS)
    predicted = initial_states.Predicted(keras.layers.Dense(4))
    with pytest.raises(ValueError, match="Pass `initial_state` to the constructor"):
        deq.initial_state = predicted
    with pytest.raises(ValueError, match="Pass `initial_state` to the constructor"):
        deq.solve(INPUTS, solvers.SolveRequest(predicted))
    deq = layers.DEQ(TanhCell(4), initial_state=predicted)
    problem = deq.problem(injection=deq.inject(INPUTS))
    with pytest.raises(ValueError, match="needs the inputs of the DEQ layer"):
        deq.request(problem)


def test_a_config_names_the_layer():
    config = {
        "class_name": "predicted",
        "layer": {"class_name": "dense", "units": 4},
        "weight": 0.5,
    }
    deq = layers.DEQ(TanhCell(4), initial_state=config)
    copy = layers.DEQ.from_config(deq.get_config())
    assert copy.initial_state.get_config() == deq.initial_state.get_config()
    assert copy.initial_state.layer is not deq.initial_state.layer
    assert (copy.initial_state.layer.units, copy.initial_state.weight) == (4, 0.5)
    deq(INPUTS)
    predictor = deq.initial_state.layer
    deq.initial_state = "zeros"
    deq.initial_state = {**config, "weight": 2.0}  # A phase sets it so.
    assert deq.initial_state.layer is predictor
    assert deq.initial_state.weight == 2.0
    with pytest.raises(ValueError, match="Pass `initial_state` to the constructor"):
        deq.initial_state = {**config, "layer": {"class_name": "dense", "units": 5}}
