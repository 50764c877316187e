"""Mazes: carve them, find the shortest path, read mazes drawn in a text file."""

from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...files.input_file import read_text
from .task import Examples, Levels, ReasoningTask

_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))
_START = (0.0, 1.0, 0.0)
_GOAL = (1.0, 0.0, 0.0)
_DRAWN = "Expected mazes, drawn of # (wall), space (corridor), one S and one G"


class Mazes(ReasoningTask):
    """The pixels on the path from the start of a maze to its goal.

    The level is the size as in Schwarzschild et al.: a maze of "N x N" has `n =
    (N + 1) / 2` cells per side, here in `2 n + 1 = N + 2` pixels, `(N + 2, N + 2, 3)`.
    Walls are (0, 0, 0), corridors (1, 1, 1), the start is (0, 1, 0), the goal (1, 0,
    0). Published images repeat every pixel and add a border, so their paths have twice
    as many steps.

    The target is 1 on the path, both ends included, and 0 elsewhere; walls have weight
    0. Start and goal are two cells of the finished maze. The published mazes are carved
    from the start instead, which nearly always leaves it one neighbor and makes paths
    longer. Networks trained on them fail more often if a start has several neighbors
    (Knutson et al.).

    Difficulty and distance are the steps of the path, which a mark has to travel from
    the start to the goal. Some networks need fewer: filling dead ends takes the depth
    of the deepest one, less than the path in about a third of the mazes.

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


def carve(generator, cells):
    """Draws a perfect maze by randomized depth-first traversal from a random cell.

    Args:
        generator: NumPy's `Generator`.
        cells: Positive integer. Cells per side.

    Returns:
        Boolean array `(2 * cells + 1, 2 * cells + 1)`, true at corridors. The cell of a
        row and a column is at `[2 * row + 1, 2 * column + 1]`, and passages are between
        cells. The passages are a spanning tree, so one path connects any two cells.
    """
    root = tuple(generator.integers(cells, size=2).tolist())
    closed = {(row, column) for row in range(cells) for column in range(cells)} - {root}
    trail, passages = [root], []
    while trail:
        row, column = trail[-1]
        around = [(row + down, column + right) for down, right in _STEPS]
        choices = [cell for cell in around if cell in closed]
        if not choices:
            trail.pop()
            continue
        chosen = choices[generator.integers(len(choices))]
        passages.append((row + chosen[0] + 1, column + chosen[1] + 1))
        closed.remove(chosen)
        trail.append(chosen)
    is_open = np.zeros((2 * cells + 1, 2 * cells + 1), bool)
    is_open[1::2, 1::2] = True
    is_open[tuple(np.array(passages, int).reshape(-1, 2).T)] = True
    return is_open


class ShortestPath(NamedTuple):
    """A shortest path.

    Attributes:
        places: List of `(row, column)` from the start to the goal, both included.
        is_only: Boolean. Whether all other paths are longer.
    """

    places: list
    is_only: bool


def shortest_path(is_open, start, goal):
    """Returns the shortest path of a maze, found breadth-first.

    Args:
        is_open: Boolean array `(height, width)`, true at corridors.
        start: `(row, column)` of a corridor.
        goal: `(row, column)`.

    Returns:
        `ShortestPath`, or `None` if the goal cannot be reached.
    """
    corridors = set(zip(*map(list, is_open.nonzero()), strict=True))
    previous, ways = {start: None}, {start: 1}
    layer = [start]
    while layer and goal not in ways:
        reached = {}
        for place in layer:
            for down, right in _STEPS:
                neighbor = place[0] + down, place[1] + right
                if neighbor in corridors and neighbor not in ways:
                    previous.setdefault(neighbor, place)
                    reached[neighbor] = reached.get(neighbor, 0) + ways[place]
        ways.update(reached)
        layer = list(reached)
    if goal not in ways:
        return None
    places = [goal]
    while places[-1] != start:
        places.append(previous[places[-1]])
    return ShortestPath(places[::-1], ways[goal] == 1)


def read_mazes(path):
    """Reads mazes from a text file.

    A maze is a rectangle of `#` for walls, spaces for corridors, `S` for the start and
    `G` for the goal; empty lines separate mazes. Mazes may have cycles if one path from
    S to G is shorter than all others.

    Args:
        path: The file.

    Returns:
        A list of `Examples` with one maze each, in the order of the file.

    Raises:
        InputError: If the file cannot be read, or one of its mazes cannot be used. The
            message names the line.
    """
    mazes = [_example(path, *block) for block in _blocks(read_text(path))]
    return [Examples(*(array[None] for array in maze)) for maze in mazes]


def _encode(is_open, path):
    """Returns the `Examples` of one maze, without the axis of the batch.

    Args:
        is_open: Boolean array `(height, width)`, true at corridors.
        path: List of `(row, column)` from the start to the goal.
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
    return _encode(is_open, shortest_path(is_open, start, goal).places)


def _blocks(text):
    """Yields the number of the first line of each maze, and its lines."""
    lines, first = [], None
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if line:
            first = first or number
            lines.append(line)
        elif lines:
            yield first, lines
            lines, first = [], None


def _example(path, first, lines):
    for number, line in enumerate(lines, start=first):
        _check_line(path, number, line, len(lines[0]))
    maze = np.array([list(line) for line in lines])
    start, goal = (_only(path, first, maze, letter) for letter in "SG")
    found = shortest_path(maze != "#", start, goal)
    where = f"from S to G in the maze that begins in line {first} of {path}"
    if found is None:
        raise InputError(f"Expected a path {where}. Received: none. Open a wall.")
    if not found.is_only:
        raise InputError(
            f"Expected one shortest path {where}. Received: several of "
            f"{len(found.places) - 1} steps. Close all but one."
        )
    return _encode(maze != "#", found.places)


def _check_line(path, number, line, width):
    odd = sorted(set(line) - set("# SG"))
    if odd:
        raise InputError(f"{_DRAWN}, in {path}. Received: {odd[0]!r} in line {number}.")
    if len(line) != width:
        raise InputError(
            f"Expected lines of one length in a maze of {path}. Received: {len(line)} "
            f"characters in line {number}, after {width} in its first. A corridor at "
            "the end of a line is a space, which some editors take away."
        )


def _only(path, first, maze, letter):
    places = list(zip(*map(list, np.nonzero(maze == letter)), strict=True))
    if len(places) != 1:
        raise InputError(
            f"{_DRAWN}, in {path}. Received: {len(places)} {letter} in the maze that "
            f"begins in line {first}."
        )
    return places[0]
