"""What holds for every cell of a reasoner."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers
from deq_keras.solvers import FixedPointIteration
from tests.layers.formulas import normal
from tests.regimes import slow

CELLS = {
    "automaton": (layers.AutomatonCell, {}),
    "strings of automata": (layers.AutomatonCell, {"rank": 1}),
    "board": (layers.BoardCell, {}),
    "boxes": (layers.BoardCell, {"box_shape": (2, 3)}),
    "recall": (layers.RecallCell, {}),
    "strings": (layers.RecallCell, {"rank": 1}),
    "tanh": (layers.RecallCell, {"activation": "tanh"}),
    "sphere": (layers.RecallCell, {"activation": "sphere"}),
    "attention": (layers.AttentionCell, {"num_heads": 2, "num_blocks": 1}),
    "mixer": (layers.MixerCell, {"num_blocks": 1}),
}
FEW = FixedPointIteration(max_iter=5, tol=None)


def _rank(name):
    return CELLS[name][1].get("rank", 2)


def _layer(name, scale=1.0):
    """A layer of a cell whose last kernels are not zeros, as they are at first."""
    cls, arguments = CELLS[name]
    cell = cls(6, **arguments)
    cell.build((None, 4, 6)[: _rank(name) + 1] + (6,))
    for weight in cell.weights:
        fan_in = np.prod(weight.shape[:-1])
        weight.assign(scale * normal(weight.shape) / fan_in**0.5)
    return layers.DEQ(cell, FEW)


@pytest.mark.parametrize(
    "name, bound",
    [("automaton", 1), ("boxes", 1), ("recall", 6), ("tanh", 1), ("sphere", 1)],
)
def test_state_is_bounded_for_all_weights(name, bound):
    cell = _layer(name, scale=30.0).cell
    injection = cell.inject(normal((2, 6, 6, 6)).astype("float32"))
    state = cell.initial_state(injection)
    for _ in range(20):
        state = cell(state, injection)
    if name == "sphere":
        state = np.sqrt(np.mean(np.square(state), axis=-1))
    assert 0 < np.max(np.abs(state)) <= bound + 1e-5


@pytest.mark.parametrize(
    "name", ["automaton", "strings of automata", "recall", "strings"]
)
def test_reach_of_an_evaluation(name):
    cell, shape = _layer(name).cell, (1, *[21] * _rank(name), 6)
    state, changed = np.zeros((2, *shape), "float32")
    changed[(0, *[10] * _rank(name))] = 1.0
    injection = cell.inject(np.full(shape, 0.5, "float32"))
    moved = np.any(cell(changed, injection) != cell(state, injection), axis=-1)[0]
    reach = cell.reach if isinstance(cell, layers.RecallCell) else 1
    for places in np.nonzero(moved):
        assert (places.min(), places.max()) == (10 - reach, 10 + reach)


@pytest.mark.parametrize(
    "name, regime",
    [
        ("automaton", "eager"),
        ("board", "eager"),
        ("boxes", "eager"),
        ("strings", "eager"),
        ("attention", "eager"),
        slow("attention", "xla"),
    ],
    indirect=["regime"],
)
@pytest.mark.usefixtures("full_float32")
def test_padding_does_not_change_a_result(name, regime):
    deq = _layer(name, scale=0.5)
    sides = [(0, 2), (0, 3)][: _rank(name)]
    small = normal((2, 4, 6)[: len(sides) + 1] + (6,)).astype("float32")
    padding = [(0, 0), *sides, (0, 0)]
    large = np.pad(small, padding, constant_values=7.0)
    mask = np.pad(np.ones(small.shape[:-1], bool), padding[:-1])
    padded = regime(lambda inputs, mask: deq.solve(inputs, mask=mask))(large, mask)
    value, alone = padded.value.numpy(), deq.solve(small).value
    np.testing.assert_allclose(value[mask], np.reshape(alone, (-1, 6)), atol=1e-5)
    np.testing.assert_array_equal(value[~mask], 0.0)


@pytest.mark.parametrize("name", ["automaton", slow("attention")])
def test_graphs_of_boards_of_any_size(name):
    deq = _layer(name, scale=0.5)
    deq.build((None, None, None, 6))
    call = tf.function(deq)
    for size in (4, 7):
        inputs = normal((3, size, 5, 6)).astype("float32")
        value = call(inputs)
        assert value.shape == (3, size, 5, 6)
        np.testing.assert_allclose(value, deq(inputs), atol=1e-5)
