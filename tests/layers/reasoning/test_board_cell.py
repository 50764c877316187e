import numpy as np

from deq_keras.layers import DEQ, BoardCell
from deq_keras.solvers import FixedPointIteration
from tests.layers.formulas import normal

FEW = FixedPointIteration(max_iter=5, tol=None)
BOXES = (2, 3)


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
    state, inputs = (normal((2, 4, 6, size), size) for size in (5, 7))
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
    inputs = normal((2, 6, 6, 4)).astype("float32")
    rows, columns = [1, 0, 4, 5, 3, 2], [4, 3, 5, 2, 0, 1]
    moved = inputs[:, rows][:, :, columns]
    one, other = (
        DEQ(cell, FEW).solve(board).value.numpy() for board in (inputs, moved)
    )
    np.testing.assert_allclose(other, one[:, rows][:, :, columns], atol=1e-6)
