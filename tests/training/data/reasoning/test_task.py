"""All reasoning tasks, and the targets of sequences."""

import subprocess
import sys

import numpy as np
import pytest

from training.data import reasoning
from training.data.reasoning import sequences

# A task, and two of its levels.
TASKS = {
    "chains": (reasoning.Chains(), (1, 5)),
    "mazes": (reasoning.Mazes(), (3, 7)),
    "prefix_sums": (reasoning.PrefixSums(), (1, 9)),
    "sudoku_4x4": (reasoning.Sudoku(4), (0, 3)),
    "sudoku_6x6": (reasoning.Sudoku(6), (0, 2)),
    "words": (reasoning.Words(), (1, 6)),
}


@pytest.fixture(params=TASKS)
def name(request):
    return request.param


def test_every_task_is_tested():
    assert set(reasoning.TASKS) == set(TASKS)


@pytest.mark.parametrize("held_out", [False, True])
def test_examples_have_the_declared_shapes(name, held_out):
    task, levels = TASKS[name]
    for level in levels:
        examples = task.examples(np.random.default_rng(0), 3, level, held_out)
        positions = task.positions(level)
        assert examples.inputs.shape == (3, *task.input_shape(level))
        assert examples.targets.shape == examples.weights.shape == (3, *positions)
        assert examples.difficulty.shape == examples.distance.shape == (3,)
        assert [array.dtype.name for array in examples[1:]] == [
            *("int32", "float32", "int32", "int32")
        ]
        if task.num_tokens is None:
            assert examples.inputs.dtype == np.float32
            assert examples.inputs.shape[1:] == (*positions, task.channels)
        else:
            assert examples.inputs.dtype == np.int32 and task.channels is None
            assert examples.inputs.shape[1:] == positions
            assert set(examples.inputs.ravel()) <= set(range(task.num_tokens))
        assert set(np.unique(examples.targets)) <= set(range(task.num_classes))
        assert set(np.unique(examples.weights)) <= {0.0, 1.0}
        assert np.all(examples.weights.reshape(3, -1).max(axis=1) == 1)
        assert np.all(examples.distance >= 0)


def test_examples_depend_on_the_generator(name):
    task, (_, level) = TASKS[name]
    first, again, other = (
        task.examples(np.random.default_rng(seed), 8, level) for seed in (0, 0, 1)
    )
    np.testing.assert_equal(again, first)
    assert np.any(first.inputs != other.inputs)
    distinct = np.unique(first.inputs.reshape(8, -1), axis=0)
    assert len(distinct) >= 7  # 9 bits and small mazes may be drawn twice.


def test_tasks_need_no_tensorflow():
    source = (
        "import sys; from training.data import reasoning\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


def test_prefix_sums():
    strings = reasoning.PrefixSums().examples(np.random.default_rng(0), 100, 6)
    assert set(strings.inputs.ravel()) == {0.0, 1.0}
    assert abs(np.mean(strings.inputs) - reasoning.PrefixSums.mean) < 0.1
    for bits, parities in zip(strings.inputs, strings.targets, strict=True):
        ones = bits[:, 0] > 0
        assert list(parities) == [sum(ones[: i + 1]) % 2 for i in range(6)]
    assert set(strings.distance) == {5} and set(strings.difficulty) == {6}


LETTERS = {"all": sequences.A5, "generators": sequences.GENERATORS}


@pytest.mark.parametrize("letters", LETTERS)
def test_targets_of_words_move_things(letters):
    task = reasoning.Words(letters)
    drawn = task.examples(np.random.default_rng(0), 100, 16)
    assert set(drawn.inputs.ravel()) == set(range(task.num_tokens))
    for word, products in zip(drawn.inputs, drawn.targets, strict=True):
        places = list(range(5))  # Where each thing is.
        for letter, product in zip(word, products, strict=True):
            places = [LETTERS[letters][letter][place] for place in places]
            assert sequences.A5[product] == tuple(places)
    assert len(np.unique(drawn.targets)) == 60
    assert set(drawn.distance) == {15}


def test_chains_have_the_class_of_their_first_node():
    graphs = reasoning.Chains().examples(np.random.default_rng(0), 50, 4)
    classes = graphs.inputs[:, ::4, :2]
    np.testing.assert_array_equal(classes.sum(axis=-1), 1.0)
    expected = np.repeat(classes.argmax(axis=-1), 4, axis=1)
    np.testing.assert_array_equal(graphs.targets, expected)
    inner = np.arange(12) % 4 > 0
    np.testing.assert_array_equal(graphs.inputs[:, inner, :2], 0.0)
    assert set(graphs.distance) == {3}


def test_solved_ignores_positions_without_weight():
    targets = np.array([[1, 0, 1]] * 3)
    weights = np.array([[1.0, 1.0, 0.0]] * 3)
    none = np.zeros(3, "int32")
    examples = reasoning.Examples(targets[..., None], targets, weights, none, none)
    answers = np.array([[1, 0, 1], [1, 0, 0], [1, 1, 1]])
    assert list(reasoning.is_solved(answers, examples)) == [True, True, False]
