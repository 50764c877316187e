import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import DEQ, RecallCell
from deq_keras.solvers import FixedPointIteration
from tests import harness, regimes

SETTLING = FixedPointIteration(max_iter=30, tol=1e-6)
ACTIVATIONS = {
    "relu6": lambda x: np.clip(x, 0, 6),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sphere": lambda x: x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5),
}


def _normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _cell(scale=None, **kwargs):
    """A cell with the kernels of a contraction, if there is a scale."""
    cell = RecallCell(6, **kwargs)
    cell.build((None,) * (cell.rank + 1) + (3,))
    for weight in cell.weights if scale else ():
        weight.assign(scale * weight)
    return cell


def _convolved(inputs, kernel):
    """Convolution by explicit sums over a zero-padded window."""
    axes = inputs.ndim - 2
    padded = np.pad(inputs, [(0, 0), *[(1, 1)] * axes, (0, 0)])
    total = 0.0
    for place in np.ndindex(*[3] * axes):
        window = tuple(
            slice(start, start + size)
            for start, size in zip(place, inputs.shape[1:-1], strict=True)
        )
        total = total + padded[:, *window] @ kernel[place]
    return total


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rank", [1, 2])
def test_formula(rank, activation):
    cell = _cell(rank=rank, activation=activation, dtype="float64")
    inputs, state = (
        _normal((2, 5, 4)[: rank + 1] + (3,)),
        _normal((2, 5, 4)[: rank + 1] + (6,)),
    )
    kernels = [weight.numpy() for weight in cell.weights]
    relu = ACTIVATIONS["relu"]
    hidden = relu(_convolved(np.concatenate([state, inputs], axis=-1), kernels[0]))
    inner = relu(_convolved(hidden, kernels[1]))
    hidden = relu(hidden + _convolved(inner, kernels[2]))
    inner = relu(_convolved(hidden, kernels[3]))
    expected = ACTIVATIONS[activation](hidden + _convolved(inner, kernels[4]))
    actual = cell(state, cell.inject(inputs))
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 2])
def test_reach_is_how_far_information_travels_in_an_evaluation(rank):
    cell = _cell(rank=rank)
    state = np.zeros((1, *[21] * rank, 6), "float32")
    changed = state.copy()
    changed[(0, *[10] * rank)] = 1.0
    injection = cell.inject(np.full((1, *[21] * rank, 3), 0.5, "float32"))
    moved = np.any(cell(changed, injection) != cell(state, injection), axis=-1)[0]
    for axis in range(rank):
        places = np.nonzero(moved)[axis]
        assert (places.min(), places.max()) == (10 - cell.reach, 10 + cell.reach)


@pytest.mark.parametrize(
    "activation, bound", [("relu6", 6), ("tanh", 1), ("sphere", 1)]
)
def test_the_state_is_bounded_whatever_the_weights(activation, bound):
    cell = _cell(scale=30.0, activation=activation)
    injection = cell.inject(_normal((2, 6, 5, 3)))
    state = cell.initial_state(injection)
    for _ in range(20):
        state = cell(state, injection)
    length = np.sqrt(np.mean(np.square(state), axis=-1))
    assert 0 < length.min() and length.max() <= bound + 1e-5


@regimes.ALL_BUT_EAGER_ARE_SLOW
@pytest.mark.parametrize("rank", [1, regimes.slow(2)])
def test_padding_does_not_change_an_answer(rank, regime):
    deq = DEQ(_cell(0.4, rank=rank), SETTLING)
    small = _normal((2, *[5] * rank, 3)).astype("float32")
    large = np.full((2, *[8] * rank, 3), 7.0, "float32")
    inside = (slice(None), *[slice(0, 5)] * rank)
    mask = np.zeros(large.shape[:-1], bool)
    large[inside], mask[inside] = small, True
    solve = regime(lambda inputs, mask: deq.solve(inputs, mask=mask))
    alone, padded = deq.solve(small), solve(large, mask)
    assert np.all(alone.num_evaluations < 30)
    np.testing.assert_array_equal(padded.num_evaluations, alone.num_evaluations)
    np.testing.assert_allclose(padded.value.numpy()[inside], alone.value, atol=1e-5)
    np.testing.assert_array_equal(padded.value.numpy()[~mask], 0.0)


def test_regimes():
    deq = DEQ(_cell(0.4), SETTLING)
    deq.build((None, None, None, 3))
    for size in (4, 7):
        inputs = _normal((3, size, 5, 3)).astype("float32")
        value = tf.function(deq)(inputs)
        assert value.shape == (3, size, 5, 6)
        np.testing.assert_allclose(value, deq(inputs), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_is_a_keras_layer(activation, tmp_path):
    solver = FixedPointIteration(max_iter=2, tol=None)

    def make(**kwargs):
        cell = RecallCell(4, rank=1, activation=activation, **kwargs)
        return DEQ(cell, solver, "phantom", None, seed=0, **kwargs)

    inputs = _normal((6, 5, 3)).astype("float32")
    harness.check_layer(make, inputs, tmp_path)


def test_config():
    harness.check_round_trip(RecallCell(4, rank=1, activation="sphere"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"filters": 0}, "`filters` must be a positive"),
        ({"rank": 3}, "`rank` must be an integer from 1 to 2"),
        (
            {"activation": "tan"},
            "one of 'relu6', 'tanh', 'sphere', 'relu'.*Did you mean 'tanh'",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RecallCell(**{"filters": 4, **arguments})


def test_inputs_of_another_rank_are_refused():
    message = r"rank=2 expects inputs of shape \(batch, height, width, channels\)"
    with pytest.raises(ValueError, match=message):
        RecallCell(4).inject(np.zeros((2, 5, 3), "float32"))
