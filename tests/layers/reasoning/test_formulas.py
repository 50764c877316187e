"""Cells and embeddings of reasoners against formulas in NumPy."""

import numpy as np
import pytest

from deq_keras import layers
from deq_keras.solvers import FixedPointIteration
from tests.layers.formulas import convolve, normal, randomize, relu

FEW = FixedPointIteration(max_iter=5, tol=None)
BOXES = (2, 3)
BOARDS = np.arange(48).reshape(2, 4, 6) % 5
TOKENS = (2, 2, 3, 8)


def _sphere(x):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("rank", [1, 2])
def test_automaton_cell(rank):
    cell = layers.AutomatonCell(6, rank=rank, step=0.3, leak=0.25, dtype="float64")
    inputs, state = (normal((2, 5, 4)[: rank + 1] + (size,)) for size in (3, 6))
    cell.build(inputs.shape)
    randomize(cell)  # The last weights start at zero.
    first, *others = (weight.numpy() for weight in cell.weights)
    inner1, inner2, inner3, inner4 = (kernel.reshape(6, 6) for kernel in others)
    hidden = relu(convolve(np.concatenate([state, inputs], axis=-1), first))
    hidden = relu(hidden + relu(hidden @ inner1) @ inner2)
    expected = np.tanh(0.75 * state + 0.3 * relu(hidden @ inner3) @ inner4)
    np.testing.assert_allclose(cell(state, cell.inject(inputs)), expected, atol=1e-12)


def test_an_untrained_automaton_forgets():
    cell = layers.AutomatonCell(6, leak=0.25)
    state, inputs = (normal((2, 6, 5, size)).astype("float32") for size in (6, 3))
    after = cell(state, cell.inject(inputs))
    np.testing.assert_allclose(after, np.tanh(0.75 * state), atol=1e-6)


ACTIVATIONS = {
    "relu6": lambda x: np.clip(x, 0, 6),
    "relu": relu,
    "tanh": np.tanh,
    "sphere": _sphere,
}


@pytest.mark.parametrize(
    "rank, activation", list(zip([1, 2, 1, 2], ACTIVATIONS, strict=True))
)
def test_recall_cell(rank, activation):
    cell = layers.RecallCell(6, rank=rank, activation=activation, dtype="float64")
    inputs, state = (normal((2, 5, 4)[: rank + 1] + (size,)) for size in (3, 6))
    actual = cell(state, cell.inject(inputs))
    kernels = [weight.numpy() for weight in cell.weights]
    hidden = relu(convolve(np.concatenate([state, inputs], axis=-1), kernels[0]))
    inner = relu(convolve(hidden, kernels[1]))
    hidden = relu(hidden + convolve(inner, kernels[2]))
    inner = relu(convolve(hidden, kernels[3]))
    expected = ACTIVATIONS[activation](hidden + convolve(inner, kernels[4]))
    np.testing.assert_allclose(actual, expected, atol=1e-12)


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


def test_board_cell():
    cell = layers.BoardCell(5, BOXES, step=0.3, dtype="float64")
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
    deq = layers.DEQ(layers.BoardCell(5, BOXES), FEW)
    inputs = normal((2, 6, 6, 4)).astype("float32")
    rows, columns = [1, 0, 4, 5, 3, 2], [4, 3, 5, 2, 0, 1]
    moved = inputs[:, rows][:, :, columns]
    one, other = (deq.solve(board).value.numpy() for board in (inputs, moved))
    np.testing.assert_allclose(other, one[:, rows][:, :, columns], atol=1e-6)


def _gated(x, layer):
    inner, outer = (weight.numpy() for weight in layer.weights)
    gate, values = np.split(x @ inner, 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * values) @ outer


def _attended(x, layer):
    query, key, value, output = (weight.numpy() for weight in layer.weights)
    q, k, v = (np.einsum("btu,uhd->bhtd", x, w) for w in (query, key, value))
    scores = np.exp(np.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1]))
    weights = scores / scores.sum(axis=-1, keepdims=True)
    return np.einsum("bhts,bhsd,hdu->btu", weights, v, output)


def _mixed(x, layer):
    return _gated(x.swapaxes(1, 2), layer).swapaxes(1, 2)


@pytest.mark.parametrize(
    "cell_class, mixed", [(layers.MixerCell, _mixed), (layers.AttentionCell, _attended)]
)
def test_token_cells(cell_class, mixed):
    cell = cell_class(8, num_blocks=2, dtype="float64")
    inputs, state = normal(TOKENS), normal(TOKENS, seed=1)
    actual = cell(state, cell.inject(inputs))
    tokens = (state + inputs).reshape(2, 6, 8)
    for mixing, perceptron in zip(cell.mixings, cell.perceptrons, strict=True):
        tokens = _sphere(tokens + mixed(tokens, mixing))
        tokens = _sphere(tokens + _gated(tokens, perceptron))
    np.testing.assert_allclose(actual, tokens.reshape(TOKENS), atol=1e-6)
    np.testing.assert_allclose(np.mean(np.square(actual), axis=-1), 1.0, atol=1e-3)


def test_padding_of_a_mixer_does_not_change_a_result():
    deq = layers.DEQ(layers.MixerCell(8), FEW)
    mask = np.ones(TOKENS[:-1], bool)
    mask[0, 1] = False
    inputs = normal(TOKENS).astype("float32")
    other = np.where(mask[..., None], inputs, 100.0).astype("float32")
    value = deq.solve(inputs, mask=mask).value.numpy()
    np.testing.assert_allclose(deq.solve(other, mask=mask).value, value, atol=1e-5)
    np.testing.assert_array_equal(value[~mask], 0.0)
    assert np.abs(value - deq.solve(inputs).value)[0, 0].max() > 1e-2


def test_board_embedding():
    layer = layers.BoardEmbedding(5, 9, board_shape=(4, 6), box_shape=(2, 3))
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
def test_board_embedding_starts_with_a_variance_of_one(box_shape):
    layer = layers.BoardEmbedding(100, 200, board_shape=(20, 20), box_shape=box_shape)
    embedded = layer(np.random.default_rng(0).integers(0, 100, (2, 20, 20)))
    assert np.var(embedded) == pytest.approx(1.0, rel=0.1)
