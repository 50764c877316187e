import numpy as np
import pytest

from deq_keras.layers import BoardEmbedding

BOARDS = np.arange(48).reshape(2, 4, 6) % 5


def test_formula():
    layer = BoardEmbedding(5, 9, board_shape=(4, 6), box_shape=(2, 3))
    embedded = layer(BOARDS).numpy()
    tokens, rows, columns, boxes = (table.numpy() for table in layer.tables)
    assert boxes.shape == (4, 9)
    for sample, row, column in np.ndindex(BOARDS.shape):
        box = 2 * (row // 2) + column // 3
        token = tokens[BOARDS[sample, row, column]]
        expected = 3.0 * (token + rows[row] + columns[column] + boxes[box])
        actual = embedded[sample, row, column]
        np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("box_shape", [None, (2, 2)])
def test_starts_with_a_variance_of_one(box_shape):
    layer = BoardEmbedding(100, 200, board_shape=(20, 20), box_shape=box_shape)
    embedded = layer(np.random.default_rng(0).integers(0, 100, (2, 20, 20)))
    assert np.var(embedded) == pytest.approx(1.0, rel=0.1)
