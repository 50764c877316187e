"""The small tasks: their examples, scores and cells."""

import numpy as np
import pytest

from tests.training.experiments.small_tasks import config
from training.experiments.defaults.tasks import TASKS
from training.experiments.defaults.tasks.task import accuracy
from training.experiments.defaults.tasks.vectors import smooth_function


def draw(name, seed=1, train=40, test=20):
    """Returns the training and the test examples of a task."""
    sizes = {"data__train_examples": train, "data__test_examples": test}
    return TASKS[name].draw(config(data__task=name, **sizes).data, seed)


def drawn(name):
    """Small training examples of a task; their shapes are those that it says."""
    training, testing = draw(name)
    assert len(training.inputs) == 40 and len(testing.inputs) == 20
    assert training.inputs.dtype == np.float32
    return training


def searched(free, start):
    """The set of pixels that paths of free pixels lead to."""
    found, waiting = {start}, [start]
    while waiting:
        row, column = waiting.pop()
        for near in (
            (row - 1, column),
            (row + 1, column),
            (row, column - 1),
            (row, column + 1),
        ):
            is_inside = all(0 <= n < size for n, size in zip(near, free.shape))
            if is_inside and free[near] and near not in found:
                found.add(near)
                waiting.append(near)
    return found


def test_regression():
    training, testing = draw("regression", 0, None, None)
    assert training.inputs.shape == (2048, 4) and testing.targets.shape == (1024, 1)
    noise = training.targets[:, 0] - smooth_function(training.inputs)
    assert noise.std() == pytest.approx(0.02, rel=0.1)
    x = np.array([[0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0]])
    expected = [1.0 + 1.0, np.exp(-1.0) * np.cos(2.0)]
    np.testing.assert_allclose(smooth_function(x), expected)


def test_parity():
    inputs, targets = drawn("parity")
    assert inputs.shape == (40, 16, 1)
    for bits, parities in zip(inputs[..., 0], targets, strict=True):
        expected = [int(sum(bits[: end + 1])) % 2 for end in range(16)]
        np.testing.assert_array_equal(parities, expected)


def test_blobs():
    inputs, targets = drawn("blobs")
    assert inputs.shape == (40, 16, 16, 1)
    assert set(targets) == set(range(5))
    for image, count in zip(inputs[..., 0] > 0.5, targets, strict=True):
        sizes = []
        while image.any():
            start = tuple(np.argwhere(image)[0])
            blob = searched(image, start)
            sizes.append(len(blob))
            for pixel in blob:
                image[pixel] = False
        assert len(sizes) == count
        assert set(sizes) <= {1, 4, 9}


def test_flood():
    inputs, targets = drawn("flood")
    assert inputs.shape == (40, 8, 8, 2)
    for (free, source), labels in zip(
        np.moveaxis(inputs, -1, 1) > 0, targets, strict=True
    ):
        ((start),) = map(tuple, np.argwhere(source))
        assert free[start]
        np.testing.assert_array_equal(labels == -1, ~free)
        reached = {tuple(pixel) for pixel in np.argwhere(labels == 1)}
        assert reached == searched(free, start)


def test_tabular():
    inputs, targets = drawn("tabular_gru")
    x = inputs.astype("float64").T
    expected = np.sin(np.pi * x[0]) * x[1] - x[0] * x[3] / 2
    expected += np.exp(-4 * x[2] ** 2) * np.cos(2 * x[3])
    expected += x[4] * x[5] * np.sin(2 * x[1])
    assert 0.005 < np.std(targets[:, 0] - expected) < 0.04


def test_seen_before():
    inputs, targets = drawn("seen_before")
    assert inputs.shape == (40, 16, 28)
    assert np.all(inputs[..., 12:] == np.eye(16))
    for tokens, labels in zip(inputs[..., :12].argmax(-1), targets, strict=True):
        expected = [token in tokens[:at] for at, token in enumerate(tokens)]
        np.testing.assert_array_equal(labels, expected)


def test_brackets():
    inputs, targets = drawn("brackets")
    assert inputs.shape == (40, 16, 18)
    assert np.all(inputs[..., 2:] == np.eye(16))
    for is_opening, labels in zip(inputs[..., :2].argmax(-1), targets, strict=True):
        waiting, expected = [], np.zeros(16)
        for at, opens in enumerate(is_opening):
            if opens:
                waiting.append(at)
            elif waiting:
                expected[[waiting.pop(), at]] = 1
        np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize("name", [n for n in TASKS if "digits" not in n])
def test_seed_fixes_examples(name):
    first, again, other = (draw(name, seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(first.targets, again.targets)
    assert np.any(first.inputs != other.inputs)


def test_scores_ignore_blocked_pixels():
    logits = np.eye(2)[[[0, 1, 1], [1, 0, 0]]]
    assert accuracy(logits, np.array([[0, 0, -1], [-1, 1, 1]])) == 25.0
    loss = TASKS["flood"].loss()
    logits = np.array([[[[2.0, 0.0], [0.0, 9.0]]]], "float32")
    value = loss(np.array([[[1, -1]]]), logits)
    assert float(value) == pytest.approx(np.log1p(np.exp(2.0)))
