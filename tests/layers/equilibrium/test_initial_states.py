"""Initial states of solves: given, drawn, learned and predicted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, initial_states, layers, multistart, solvers
from tests.layers.cells import FunctionCell, TanhCell, TwoScaleCell
from tests.regimes import slow

INPUTS = np.random.RandomState(0).normal(size=(6, 4)).astype("float32")
ONCE = solvers.FixedPointIteration(max_iter=1, tol=None)
TEXTS = np.ones((2, 5, 4), "float32")
MASK = np.array([[True] * 3 + [False] * 2, [True] * 5])


def _state(deq, inputs=INPUTS, mask=None, **request):
    """The initial state of a solve."""
    problem = deq.problem(inputs, mask)
    return deq.request(problem, solvers.SolveRequest(**request)).initial_state


class TestGiven:
    """States that are arguments of a call."""

    def test_solve_starts_from_the_state(self):
        deq = layers.DEQ(TanhCell(5), solvers.Anderson(max_iter=30, tol=1e-4))
        solution = deq.solve(INPUTS)
        assert solution.batch_evaluations > 2
        warm = deq.solve(INPUTS, solvers.SolveRequest(solution.point))
        assert warm.batch_evaluations == 1
        np.testing.assert_array_equal(warm.point, solution.point)
        value = deq(INPUTS, initial_state=solution.point)
        np.testing.assert_array_equal(value, solution.value)

    def test_non_finite_state_is_replaced_by_that_of_the_cell(self):
        deq = layers.DEQ(TanhCell(5))
        start = np.zeros((6, 5), "float32")
        start[2] = np.nan
        np.testing.assert_array_equal(deq(INPUTS, initial_state=start), deq(INPUTS))

    def test_functional_model_of_inputs_and_state(self, tmp_path):
        """A graph of an open batch would broadcast a single row."""
        inputs, start = keras.Input((4,)), keras.Input((5,))
        deq = layers.DEQ(TanhCell(5), solvers.FixedPointIteration(tol=1e-4), "phantom")
        model = keras.Model([inputs, start], deq(inputs, initial_state=start))
        request = solvers.SolveRequest(max_iter=60, tol=1e-6)
        state = deq.solve(INPUTS, request).value.numpy()
        np.testing.assert_allclose(model([INPUTS, state]), state, atol=1e-3)
        model.export(tmp_path / "model", verbose=False)
        loaded = tf.saved_model.load(tmp_path / "model")
        specs = [tf.TensorSpec((None, 4)), tf.TensorSpec((None, 5))]
        train = tf.function(
            lambda x, z: deq(x, initial_state=z, training=True), input_signature=specs
        )
        for call in (lambda x, z: loaded.serve([x, z]), train):
            np.testing.assert_allclose(call(INPUTS, state), state, atol=1e-3)
            for rows, others in ((6, 1), (1, 6), (6, 0)):
                with pytest.raises(tf.errors.InvalidArgumentError):
                    call(INPUTS[:rows], state[:others])

    def test_state_of_several_dtypes(self):
        cell = FunctionCell(
            lambda z, u: (0.5 * z[0] + u, tf.cast(z[1], tf.float64)),
            lambda u: (tf.zeros_like(u), tf.zeros_like(u, tf.float64)),
        )
        deq = layers.DEQ(cell)
        value = deq(INPUTS)
        assert [leaf.dtype for leaf in value] == [tf.float32, tf.float64]
        for warm in (value, [leaf.numpy() for leaf in value], [INPUTS, INPUTS]):
            again = deq(INPUTS, initial_state=tuple(warm), max_iter=1)
            np.testing.assert_allclose(again[0], 0.5 * warm[0] + INPUTS, rtol=1e-6)
            np.testing.assert_array_equal(again[1], warm[1])

    def test_states_of_an_rnn_cell_are_a_plain_list(self):
        deq = layers.DEQ(layers.cell_from(keras.layers.LSTMCell(3)), regularizer=None)
        value = deq(INPUTS)
        assert type(value) is list
        state = [leaf.numpy() for leaf in value]
        warm = deq(INPUTS, initial_state=state, max_iter=1)
        expected = deq.problem(INPUTS)(value)
        for one, other in zip(warm, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


class TestDrawn:
    """States that are drawn in training."""

    def _first_state(self, initial_state, training):
        """The state of a cell that keeps it: f(z) = z + u - u."""
        cell = FunctionCell(lambda z, u: z + 0.0 * u, lambda u: 7.0 * tf.ones_like(u))
        deq = layers.DEQ(
            cell, ONCE, "unrolled", None, initial_state=initial_state, seed=1
        )
        return deq(INPUTS, training=training).numpy()

    def test_kinds(self):
        first_state = self._first_state
        np.testing.assert_array_equal(first_state("cell", True), 7.0)
        np.testing.assert_array_equal(first_state("zeros", True), 0.0)
        np.testing.assert_array_equal(first_state("zeros", False), 0.0)
        np.testing.assert_array_equal(first_state("normal", False), 7.0)
        drawn = first_state("normal", True)
        assert len(np.unique(drawn)) == drawn.size
        np.testing.assert_array_equal(drawn, first_state("normal", True))
        deq = layers.DEQ(TanhCell(3), ONCE, "unrolled", initial_state="normal", seed=1)
        assert np.all(deq(INPUTS, training=True) != deq(INPUTS, training=True))
        mixed = {"class_name": "mixed", "initial_states": ["cell", "zeros"]}
        assert set(np.unique(first_state(mixed, True))) <= {0.0, 7.0}

    def test_requests_choose_the_state_at_inference(self):
        deq = layers.DEQ(TanhCell(3), ONCE)
        one = _state(deq, initial_state="normal", seed=1).numpy()
        two = _state(deq, initial_state=initial_states.Normal(), seed=2)
        assert np.all(one != two)
        np.testing.assert_array_equal(_state(deq, initial_state="normal", seed=1), one)
        np.testing.assert_array_equal(_state(deq), 0.0)
        for request in (
            solvers.SolveRequest(one),
            solvers.SolveRequest("normal", seed=1),
        ):
            np.testing.assert_array_equal(deq.solve(INPUTS, request).point, one)
        # A seed draws the layer's own initial state.
        deq.initial_state = "normal"
        np.testing.assert_array_equal(_state(deq, seed=1), one)
        np.testing.assert_array_equal(_state(deq), 0.0)
        request = solvers.SolveRequest("normal")
        with pytest.raises(ValueError, match="state of tensors"):
            deq.solver.solve(deq.problem(INPUTS), request)

    def test_padding_starts_at_zero(self):
        deq = layers.DEQ(TanhCell(3), ONCE, "unrolled", initial_state="normal")
        value = deq(TEXTS, mask=MASK, training=True).numpy()
        np.testing.assert_array_equal(value[~MASK], 0.0)
        assert np.all(value[MASK] != 0.0)
        state = _state(deq, TEXTS, MASK, seed=1).numpy()
        np.testing.assert_array_equal(state[~MASK], 0.0)


@pytest.mark.parametrize(
    "cell, gradient",
    [
        (TanhCell, "unrolled"),
        (TanhCell, gradients.TruncatedGradient(3, 0)),
        slow(TwoScaleCell, "unrolled"),
    ],
)
def test_learned_state_learns_and_is_saved(cell, gradient, tmp_path):
    inputs, shapes = INPUTS, keras.Input((4,))
    if cell is TwoScaleCell:
        inputs = {"x": INPUTS, "y": INPUTS}
        shapes = {name: keras.Input((4,), name=name) for name in inputs}
    solver = solvers.FixedPointIteration(max_iter=3, tol=None)
    state = {"class_name": "learned", "initializer": "ones"}
    deq = layers.DEQ(cell(3), solver, gradient, initial_state=state)
    leaves = keras.tree.flatten(deq(shapes))
    flat = [keras.layers.Flatten()(leaf) for leaf in leaves]
    model = keras.Model(shapes, flat)
    learned = {
        weight.path: weight.numpy()
        for weight in deq.trainable_weights
        if weight.path.split("/")[-1].startswith("initial_state")
    }
    assert len(learned) == len(leaves)
    losses = ["mse"] * len(leaves)
    model.compile(keras.optimizers.SGD(0.1), losses, run_eagerly=True)
    targets = [np.ones((6, *leaf.shape[1:])) for leaf in flat]
    model.fit(inputs, targets, verbose=0)
    for weight in deq.trainable_weights:
        assert np.any(learned.get(weight.path, np.nan) != weight.numpy())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one, two in zip(model(inputs), loaded(inputs), strict=True):
        np.testing.assert_array_equal(one, two)
    deq.initial_state = "normal"


class TestPredicted:
    """States that another layer predicts."""

    def _linear_deq(self, gradient="phantom", weight=1.0):
        """f(z, u) = z / 2 + u has the equilibrium 2 u, which is a linear layer."""
        cell = FunctionCell(lambda z, u: 0.5 * z + u, tf.zeros_like)
        predictor = keras.layers.Dense(4, kernel_initializer="identity")
        return layers.DEQ(
            cell,
            solvers.FixedPointIteration(max_iter=40, tol=1e-4),
            gradient,
            regularizer=None,
            initial_state=initial_states.Predicted(predictor, weight),
        )

    def test_every_call_starts_at_the_prediction(self):
        deq = self._linear_deq()
        deq.solver = ONCE
        for training in (False, True):  # One evaluation at z = u.
            value = deq(INPUTS, training=training)
            np.testing.assert_allclose(value, 1.5 * INPUTS, rtol=1e-6)
        np.testing.assert_array_equal(_state(deq), INPUTS)
        np.testing.assert_array_equal(_state(deq, initial_state="zeros"), 0.0)
        found = multistart.solve(deq, INPUTS, restarts=1)
        np.testing.assert_array_equal(found.value, deq.solve(INPUTS).value)

    @pytest.mark.parametrize(
        "gradient",
        ["implicit", "unrolled", gradients.TruncatedGradient(3, 0), "reversible"],
        ids=str,
    )
    def test_only_its_own_loss_trains_the_predictor(self, gradient):
        """The closed form: d/dK of weight * mean((z* - x K)^2)."""
        deq = self._linear_deq(gradient, weight=0.5)
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
    def test_trained_predictor_saves_evaluations_and_is_saved(self, tmp_path):
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
        before = model.evaluate(INPUTS, INPUTS, verbose=0, return_dict=True)
        model.fit(INPUTS, INPUTS, epochs=60, verbose=0)
        after = model.evaluate(INPUTS, INPUTS, verbose=0, return_dict=True)
        assert after["deq_evaluations"] <= before["deq_evaluations"] - 3
        assert after["loss"] < 1e-5  # The penalty is a loss of training only.
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

    def test_several_inputs_and_states(self):
        inputs = {"x": INPUTS, "y": INPUTS}
        symbolic = {name: keras.Input((4,), name=name) for name in inputs}
        vector = keras.layers.Dense(3)(symbolic["x"])
        state = {"vector": vector, "map": keras.layers.Reshape((3, 1))(vector)}
        predictor = keras.Model(symbolic, state)
        predicted = initial_states.Predicted(predictor)
        found = _state(layers.DEQ(TwoScaleCell(3), initial_state=predicted), inputs)
        for name, leaf in predictor(inputs).items():
            np.testing.assert_array_equal(found[name], leaf)

    def test_failed_samples_and_padding_do_not_train_the_predictor(self):
        deq = self._linear_deq()
        inputs = INPUTS.copy()
        inputs[2] = np.nan
        deq(inputs, training=True)
        rows = np.delete(INPUTS, 2, axis=0)
        np.testing.assert_allclose(deq.losses[0] * 6 / 5, np.mean(rows**2), rtol=1e-3)
        sequence = np.stack([INPUTS, INPUTS], axis=1)
        mask = np.array([[True, False]] * 6)
        state = _state(self._linear_deq(), sequence, mask).numpy()
        np.testing.assert_array_equal(state[:, 1], 0.0)
        np.testing.assert_array_equal(state[:, 0], INPUTS)

    def test_mixtures_predict(self):
        ones = keras.layers.Dense(4, kernel_initializer="ones")
        mixed = initial_states.Mixed([initial_states.Predicted(ones), "normal"])
        deq = layers.DEQ(TanhCell(4), ONCE, initial_state=mixed, seed=0)
        expected = np.sum(INPUTS, axis=1, keepdims=True) * np.ones(4)
        np.testing.assert_allclose(_state(deq), expected, rtol=1e-5)
        is_predicted = np.isclose(_state(deq, seed=3), expected).all(axis=1)
        assert 0 < is_predicted.sum() < 6

    def test_config_names_the_layer(self):
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
        for other in (
            {**config, "layer": {"class_name": "dense", "units": 5}},
            initial_states.Predicted(keras.layers.Dense(4)),
        ):
            with pytest.raises(ValueError, match="Received: initial_state="):
                deq.initial_state = other
