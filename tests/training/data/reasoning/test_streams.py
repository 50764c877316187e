"""Batches of training and examples of tests."""

import itertools

import numpy as np

from training.data import reasoning
from training.data.reasoning.dataset import training_dataset


def batches(steps, seed=0, levels=(3, 5)):
    task = reasoning.Mazes()
    return list(reasoning.training_batches(task, levels, 4, seed, steps))


def test_batch_depends_on_its_step():
    whole = batches(range(6))
    np.testing.assert_equal(batches(range(3, 6)), whole[3:])
    assert {inputs.shape for inputs, _, _ in whole} == {(4, 5, 5, 3), (4, 7, 7, 3)}
    assert all(targets.shape == weights.shape for _, targets, weights in whole)


def test_steps_and_seeds_differ():
    drawn = [*batches([0, 1], levels=[9]), *batches([0], seed=1, levels=[9])]
    held_out = reasoning.held_out_examples(reasoning.Mazes(), 9, 4, seed=0)
    drawn = [inputs for inputs, *_ in [*drawn, held_out]]
    for one, two in itertools.combinations(drawn, 2):
        assert np.any(one != two)


def test_held_out_examples_differ_from_training():
    """Also at the step whose number is the level."""
    task = reasoning.PrefixSums()
    (training,) = reasoning.training_batches(task, [32], 50, 7, [32])
    held_out = reasoning.held_out_examples(task, 32, 50, seed=7)
    strings = np.concatenate([training[0], held_out.inputs]).reshape(100, 32)
    assert len(np.unique(strings, axis=0)) == 100


def test_puzzles_are_held_out():
    task = reasoning.Sudoku(4)
    drawn = reasoning.held_out_examples(task, 2, 5, seed=3)
    generator = np.random.default_rng([1, 3, 2])
    expected = task.examples(generator, 5, 2, held_out=True)
    np.testing.assert_array_equal(drawn.inputs, expected.inputs)


def test_dataset_has_the_batches_of_its_steps():
    task = reasoning.Sudoku(4)
    arguments = task, [0, 1], 3, 5, range(2, 6)
    dataset = training_dataset(*arguments)
    assert [tuple(spec.shape) for spec in dataset.element_spec] == [(3, 4, 4)] * 3
    for _ in range(2):
        expected = reasoning.training_batches(*arguments)
        for arrays, batch in zip(expected, dataset.as_numpy_iterator(), strict=True):
            for array, read in zip(arrays, batch, strict=True):
                assert array.dtype == read.dtype
                np.testing.assert_array_equal(array, read)
