"""Puzzles of a user, one a line of a text file."""

import numpy as np

from ....errors import InputError
from ....files.text_file import read_text
from .board import find_board
from .solver import search
from .task import encode


def read_puzzles(path, side):
    """Reads Sudoku from a text file.

    A line holds the cells of a puzzle row by row: digits, and dots for empty cells.
    Empty lines are passed over.

    Args:
        path: the file.
        side: `4` or `6`. Cells of a row.

    Returns:
        The `Examples`, in the order of the file.

    Raises:
        InputError: if there is no board of this side, the file cannot be read, or one
            of its puzzles has not one solution. The message names the line.

    Example:

    >>> _ = pathlib.Path("puzzles.txt").write_text("1..4.4..2......1")
    >>> read_puzzles("puzzles.txt", 4).targets[0, 0] + 1
    array([1, 2, 3, 4], dtype=int32)
    """
    board, lines = find_board(side), read_text(path).split("\n")
    read = [
        _read(board, line, f"line {number} of {path}")
        for number, line in enumerate(lines, start=1)
        if line
    ]
    givens, solutions, guesses = zip(*read, strict=True)
    return encode(board, np.array(givens), np.array(solutions), guesses)


def _read(board, line, place):
    """Returns the digits of a line, the solution, and the guesses that it takes."""
    digits = "." + "".join(str(digit + 1) for digit in range(board.side))
    if len(line) != board.num_cells or set(line) - set(digits):
        raise InputError(
            f"Expected a puzzle of {board.num_cells} characters in {place}, digits 1 "
            f"to {board.side} and dots. Received: {len(line)}, {line[:100]!r}."
        )
    givens = [digits.index(character) for character in line]
    if not any(givens):
        raise InputError(
            f"Expected a puzzle in {place}. Received: an empty board. Give some digits."
        )
    _check_contradictions(board, givens, place)
    found = search(board, givens)
    if len(found.solutions) != 1:
        count = "two or more" if found.solutions else "none"
        raise InputError(
            f"Expected a puzzle with one solution in {place}. Received: {count}."
        )
    return givens, found.solutions[0], found.guesses


def _check_contradictions(board, givens, place):
    """Raises `InputError` if a row, column or box has a digit twice."""
    seen = {}
    for cell, digit in enumerate(givens):
        for unit, kind in zip(board.units[cell], ("row", "column", "box"), strict=True):
            first = seen.setdefault((unit, digit), cell) if digit else cell
            if first != cell:
                raise InputError(
                    f"Expected every digit once in a {kind}, in {place}. Received: "
                    f"{digit} as characters {first + 1} and {cell + 1}."
                )
