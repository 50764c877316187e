"""Initial states of solves: given and drawn."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import initial_states, layers, solvers
from tests.layers.cells import FunctionCell, TanhCell

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
            lambda x, z: deq(x, initial_state=z, training=True), specs, autograph=False
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
