"""Mazes of a user, drawn in a text file."""

import numpy as np

from ....errors import InputError
from ....files.text_file import read_text
from ..task import Examples
from .paths import shortest_path
from .task import encode

_DRAWN = "Expected mazes, drawn of # (wall), space (corridor), one S and one G"


def read_mazes(path):
    """Reads mazes from a text file.

    A maze is a rectangle of `#` for walls, spaces for corridors, `S` for the start and
    `G` for the goal; empty lines stand between mazes. They may have cycles, as long as
    one path from S to G is shorter than all others.

    Args:
        path: the file.

    Returns:
        A list of `Examples`, each of one maze, in the order of the file.

    Raises:
        InputError: if the file cannot be read, or one of its mazes cannot be used. The
            message names the line.
    """
    mazes = [_example(path, *block) for block in _blocks(read_text(path))]
    return [Examples(*(array[None] for array in maze)) for maze in mazes]


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
    return encode(maze != "#", found.places)


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
