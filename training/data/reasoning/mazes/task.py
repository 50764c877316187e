"""The task of finding the path through a maze."""

import numpy as np

from ..task import Examples, Levels, ReasoningTask
from .carving import carve
from .paths import shortest_path

_START = (0.0, 1.0, 0.0)
_GOAL = (1.0, 0.0, 0.0)


class Mazes(ReasoningTask):
    """Which pixels are on the path from the start of a maze to its goal.

    The level is the size as Schwarzschild et al. count it: a maze of "N x N" has `n =
    (N + 1) / 2` cells a side, here in `2 n + 1 = N + 2` pixels, `(N + 2, N + 2, 3)`.
    Walls are (0, 0, 0), corridors (1, 1, 1), the start is (0, 1, 0), the goal (1, 0,
    0). Published images have every pixel twice and a further border, and so have paths
    of twice as many steps.

    The target is 1 on the path, both ends included, and 0 elsewhere; walls do not
    count. Start and goal are two cells drawn when the maze is there. The published
    mazes are carved from the start. That nearly always leaves it one neighbour, makes
    paths longer, and the networks trained on them are wrong more often where a start
    has several (Knutson et al.).

    Difficulty and distance are the steps of the path: as far has a mark to be passed on
    from the start to say where the goal is. That is no bound for all networks: one that
    fills dead ends needs as many steps as the deepest has, fewer than the path in about
    a third of the mazes.

    Example:

    >>> mazes = Mazes().examples(np.random.default_rng(0), 2, 9)
    >>> mazes.inputs.shape, mazes.targets.shape
    ((2, 11, 11, 3), (2, 11, 11))

    Reference:

    - Schwarzschild et al. (2021), "Datasets for Studying Generalization from Easy to
      Hard Examples"
    - Knutson et al. (2024), "On Logical Extrapolation for Mazes with Recurrent and
      Implicit Networks"
    """

    name = "mazes"
    num_classes = 2
    channels = 3
    levels = Levels("the side of the maze", 3, 401, 2)

    def positions(self, level):
        return (level + 2, level + 2)

    def _draw(self, generator, count, level, held_out):
        del held_out
        mazes = [_maze(generator, (level + 1) // 2) for _ in range(count)]
        return Examples(*(np.stack(arrays) for arrays in zip(*mazes, strict=True)))


def encode(is_open, path):
    """Returns the `Examples` of one maze, without the axis of the batch.

    Args:
        is_open: bool array `(height, width)`, true at corridors.
        path: list of `(row, column)` from the start to the goal.
    """
    inputs = np.repeat(is_open[..., None], 3, axis=-1).astype("float32")
    inputs[path[0]], inputs[path[-1]] = _START, _GOAL
    targets = np.zeros(is_open.shape, "int32")
    targets[tuple(zip(*path, strict=True))] = 1
    steps = np.int32(len(path) - 1)
    return Examples(inputs, targets, is_open.astype("float32"), steps, steps)


def _maze(generator, cells):
    is_open = carve(generator, cells)
    ends = generator.choice(cells**2, size=2, replace=False)
    start, goal = ((2 * (end // cells) + 1, 2 * (end % cells) + 1) for end in ends)
    return encode(is_open, shortest_path(is_open, start, goal).places)
