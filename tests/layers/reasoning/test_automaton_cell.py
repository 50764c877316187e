import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import DEQ, AutomatonCell
from deq_keras.solvers import FixedPointIteration
from tests import harness, regimes


def _normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def _cell(scale=1.0, **kwargs):
    """A cell that has been trained, as far as its last weights are no zeros."""
    cell = AutomatonCell(6, **kwargs)
    cell.build((None,) * (cell.rank + 1) + (3,))
    for weight in cell.weights:
        weight.assign(_normal(weight.shape) * scale / np.prod(weight.shape[:-1]) ** 0.5)
    return cell


def _relu(array):
    return np.maximum(array, 0)


def _neighborhood(inputs):
    """The values of three positions a side, `(batch, *positions, 3, ..., channels)`."""
    axes = tuple(range(1, inputs.ndim - 1))
    padded = np.pad(inputs, [(0, 0), *[(1, 1)] * len(axes), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3,) * len(axes), axes)
    return np.moveaxis(windows, inputs.ndim - 1, -1)


@pytest.mark.parametrize("rank", [1, 2])
def test_formula(rank):
    cell = _cell(rank=rank, step=0.3, leak=0.25, dtype="float64")
    shape = (2, 5, 4)[: rank + 1]
    inputs, state = (_normal((*shape, size)).astype("float64") for size in (3, 6))
    first, *others = (weight.numpy() for weight in cell.weights)
    inner1, inner2, inner3, inner4 = (kernel.reshape(6, 6) for kernel in others)
    seen = _neighborhood(np.concatenate([state, inputs], axis=-1))
    axes = tuple(range(-rank - 1, 0))
    hidden = _relu(np.tensordot(seen, first, (axes, tuple(range(rank + 1)))))
    hidden = _relu(hidden + _relu(hidden @ inner1) @ inner2)
    expected = np.tanh(0.75 * state + 0.3 * _relu(hidden @ inner3) @ inner4)
    np.testing.assert_allclose(cell(state, cell.inject(inputs)), expected, atol=1e-12)


def test_an_evaluation_sees_the_next_positions_only():
    cell = _cell()
    state = np.zeros((1, 9, 9, 6), "float32")
    changed = state.copy()
    changed[0, 4, 4] = 1.0
    injection = cell.inject(np.full((1, 9, 9, 3), 0.5, "float32"))
    moved = np.any(cell(changed, injection) != cell(state, injection), axis=-1)[0]
    expected = np.zeros((9, 9), bool)
    expected[3:6, 3:6] = True
    np.testing.assert_array_equal(moved, expected)


def test_an_untrained_cell_forgets():
    cell = AutomatonCell(6, leak=0.25)
    state = _normal((2, 6, 5, 6))
    after = cell(state, cell.inject(_normal((2, 6, 5, 3))))
    np.testing.assert_allclose(after, np.tanh(0.75 * state), atol=1e-6)


def test_the_state_is_bounded_whatever_the_weights():
    cell = _cell(scale=30.0)
    injection = cell.inject(_normal((2, 6, 5, 3)))
    state = cell.initial_state(injection)
    for _ in range(20):
        state = cell(state, injection)
    assert 0 < np.max(np.abs(state)) <= 1


@regimes.ALL_BUT_EAGER_ARE_SLOW
def test_padding_does_not_change_an_answer(regime):
    deq = DEQ(_cell(), FixedPointIteration(max_iter=12, tol=None))
    small = _normal((2, 5, 5, 3))
    large = np.full((2, 8, 8, 3), 7.0, "float32")
    mask = np.zeros((2, 8, 8), bool)
    large[:, :5, :5], mask[:, :5, :5] = small, True
    padded = regime(lambda inputs, mask: deq.solve(inputs, mask=mask))(large, mask)
    alone = deq.solve(small).value
    np.testing.assert_allclose(padded.value[:, :5, :5], alone, atol=1e-5)
    np.testing.assert_array_equal(padded.value.numpy()[~mask], 0.0)


def test_regimes():
    deq = DEQ(_cell(), FixedPointIteration(max_iter=12, tol=None))
    deq.build((None, None, None, 3))
    for size in (4, 7):
        inputs = _normal((3, size, 5, 3))
        value = tf.function(deq)(inputs)
        assert value.shape == (3, size, 5, 6)
        np.testing.assert_allclose(value, deq(inputs), atol=1e-5)


@pytest.mark.slow
def test_is_a_keras_layer(tmp_path):
    solver = FixedPointIteration(max_iter=2, tol=None)

    def make(**kwargs):
        cell = AutomatonCell(4, rank=1, **kwargs)
        return DEQ(cell, solver, "phantom", None, seed=0, **kwargs)

    harness.check_layer(make, _normal((6, 5, 3)), tmp_path)


def test_config():
    harness.check_round_trip(AutomatonCell(4, rank=1, step=0.5))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"filters": 0}, "`filters` must be a positive"),
        ({"rank": 3}, "`rank` must be an integer from 1 to 2"),
        ({"step": 0}, "`step` must be a finite number > 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AutomatonCell(**{"filters": 4, **arguments})
