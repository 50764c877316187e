import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import DEQ, BoardCell
from deq_keras.solvers import FixedPointIteration
from tests import harness, regimes

FEW = FixedPointIteration(max_iter=5, tol=None)
BOXES = (2, 3)


def _normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def _heard_by_hand(state, box_shape):
    """What squares know of the state: themselves, and the means of their groups."""
    means = np.zeros((*state.shape[:-1], 4, state.shape[-1]))
    for row, column in np.ndindex(*state.shape[1:3]):
        above, left = row - row % box_shape[0], column - column % box_shape[1]
        box = state[:, above : above + box_shape[0], left : left + box_shape[1]]
        means[:, row, column] = np.stack(
            [
                state[:, row, column],
                state[:, row].mean(axis=1),
                state[:, :, column].mean(axis=1),
                box.mean(axis=(1, 2)),
            ],
            axis=1,
        )
    return means


def test_formula():
    cell = BoardCell(5, BOXES, step=0.3, dtype="float64")
    state, inputs = (
        _normal((2, 4, 6, size), size).astype("float64") for size in (5, 7)
    )
    after = cell(state, cell.inject(inputs))
    *groups, kernel, bias, inner1, inner2, inner3, inner4 = (
        weight.numpy() for weight in cell.weights
    )
    heard = np.einsum("nrcgu,guv->nrcv", _heard_by_hand(state, BOXES), np.stack(groups))
    hidden = np.maximum(heard + inputs @ kernel + bias, 0)
    hidden = np.maximum(hidden + np.maximum(hidden @ inner1, 0) @ inner2, 0)
    expected = np.tanh(state + 0.3 * np.maximum(hidden @ inner3, 0) @ inner4)
    np.testing.assert_allclose(after, expected, atol=1e-12)


def test_rows_and_columns_have_no_order_within_boxes():
    cell = BoardCell(5, BOXES)
    inputs = _normal((2, 6, 6, 4))
    rows, columns = [1, 0, 4, 5, 3, 2], [4, 3, 5, 2, 0, 1]
    moved = inputs[:, rows][:, :, columns]
    one, other = (
        DEQ(cell, FEW).solve(board).value.numpy() for board in (inputs, moved)
    )
    np.testing.assert_allclose(other, one[:, rows][:, :, columns], atol=1e-6)


def test_the_state_is_bounded_whatever_the_weights():
    cell = BoardCell(5, BOXES)
    injection = cell.inject(_normal((2, 6, 6, 4)))
    for weight in cell.weights:
        weight.assign(30 * weight)
    state = cell.initial_state(injection)
    for _ in range(20):
        state = cell(state, injection)
    assert 0 < np.max(np.abs(state)) <= 1


@regimes.ALL_BUT_EAGER_ARE_SLOW
@pytest.mark.parametrize("box_shape", [None, BOXES])
def test_padding_does_not_change_an_answer(box_shape, regime):
    deq = DEQ(BoardCell(5, box_shape), FEW)
    small, large = _normal((2, 4, 6, 4)), np.full((2, 6, 9, 4), 7.0, "float32")
    mask = np.zeros((2, 6, 9), bool)
    large[:, :4, :6], mask[:, :4, :6] = small, True
    padded = regime(lambda inputs, mask: deq.solve(inputs, mask=mask))(large, mask)
    alone = DEQ(deq.cell, FEW).solve(small).value
    np.testing.assert_allclose(padded.value[:, :4, :6], alone, atol=1e-5)
    np.testing.assert_array_equal(padded.value.numpy()[~mask], 0.0)


def test_xla():
    deq = DEQ(BoardCell(5, BOXES), FEW)
    inputs = _normal((3, 4, 6, 4))
    value = tf.function(deq, jit_compile=True)(inputs)
    np.testing.assert_allclose(value, deq(inputs), atol=1e-5)


@pytest.mark.slow
def test_is_a_keras_layer(tmp_path):
    def make(**kwargs):
        cell = BoardCell(4, BOXES, **kwargs)
        return DEQ(cell, FEW, "phantom", None, seed=0, **kwargs)

    harness.check_layer(make, _normal((6, 4, 6, 3)), tmp_path)


def test_config():
    harness.check_round_trip(BoardCell(4, BOXES, step=0.5))
    harness.check_round_trip(BoardCell(4))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"units": 0}, "`units` must be a positive"),
        ({"box_shape": (2,)}, r"`box_shape` must be a tuple \(rows, columns\)"),
        ({"step": 0}, "`step` must be a finite number > 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BoardCell(**{"units": 4, **arguments})


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 6, 3), (2, None, 6, 3)])
def test_inputs_that_are_no_such_boards_are_refused(shape):
    inputs = keras.KerasTensor(shape, "float32")
    with pytest.raises(ValueError, match=r"static boards that boxes of \(2, 3\) div"):
        BoardCell(4, BOXES).inject(inputs)
