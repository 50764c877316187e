"""What training and tests draw of a task: the same again, and not of each other."""

import numpy as np

# The first number of a key, from which everything follows.
_TRAINING, _TEST = 0, 1


def training_batches(task, levels, batch_size, seed, steps):
    """Yields a batch of fresh examples for each step; see `dataset.py` for `fit`.

    A batch is of one level, which is drawn evenly. It follows from `seed` and its step
    alone: a run that is resumed sees what it would have seen.

    Args:
        task: a `ReasoningTask`.
        levels: list of ints, levels of the task.
        batch_size: int >= 1.
        seed: int >= 0.
        steps: iterable of ints >= 0, the steps of the training.

    Yields:
        Inputs, targets and weights, as in `Examples`.

    Raises:
        InputError: if a level or the size is not one.
    """
    for step in steps:
        generator = np.random.default_rng([_TRAINING, seed, step])
        level = levels[generator.integers(len(levels))]
        yield task.examples(generator, batch_size, level)[:3]


def held_out_examples(task, level, count, seed):
    """Returns the `Examples` of a test, of those that are held out.

    Args:
        task: a `ReasoningTask`.
        level: int, one of its levels.
        count: int >= 1.
        seed: int >= 0.

    Raises:
        InputError: if the level or the count is not one.
    """
    generator = np.random.default_rng([_TEST, seed, level])
    return task.examples(generator, count, level, held_out=True)
