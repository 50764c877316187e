"""The Sudoku task, and puzzles of a text file."""

import functools
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...files.input_file import read_text
from .sudoku_boards import (
    BOARDS,
    Puzzles,
    orbit,
    solve,
    transform,
    with_further_givens,
)
from .task import Examples, Levels, ReasoningTask

# Distance between cells without a common unit: both share one with a third cell.
_DISTANCE = 2
# About one orbit in five is held out.
_HELD_OUT = 5


class Sudoku(ReasoningTask):
    """The digits of all cells of a puzzle with one solution.

    Puzzles have `side x side` cells in boxes of 2 x 2, or of 2 rows and 3 columns. The
    level is the number of digits given beyond a minimal puzzle, in which every digit is
    needed. The input of a cell is a token, `(side, side)`: 0 if it is empty, or its
    digit. The target is the digit minus one; every cell counts, also given ones.

    Examples are random symmetries of 2000 minimal puzzles, which
    `tools/make_sudoku_puzzles.py` generated: digits are renamed, and bands, stacks,
    rows and columns permuted. Puzzles of 6 x 6 cells thus hardly repeat. No symmetry
    maps a training example to a held-out one. With 6 x 6 cells, solutions are held out,
    of 49 that differ by more than a symmetry. With 4 x 4 cells there are only two, so
    puzzles are held out, of 36 minimal ones.

    Difficulty is the number of guesses of a solver that fills cells with one candidate:
    always 0 with 4 x 4 cells. Distance is 2, in steps to a cell of the same row, column
    or box.

    Args:
        side: `4` or `6`.

    Attributes:
        box_shape: `(rows, columns)` of a box.
        puzzles: The minimal `Puzzles` whose symmetries are drawn, including held-out
            ones.

    Example:

    >>> puzzles = Sudoku(4).examples(np.random.default_rng(0), 2, level=3)
    >>> puzzles.inputs.shape, puzzles.targets.shape
    ((2, 4, 4), (2, 4, 4))
    """

    def __init__(self, side):
        self._board = BOARDS[side]
        self.name = f"sudoku_{side}x{side}"
        self.num_classes = side
        self.num_tokens = side + 1
        # A minimal puzzle leaves more than half of the cells empty.
        self.levels = Levels("how many more digits are given", 0, side**2 // 2)
        self.box_shape = self._board.box_height, self._board.box_width
        self._stocks = {}

    def positions(self, level):
        del level
        return (self._board.side, self._board.side)

    def _draw(self, generator, count, level, held_out):
        if level not in self._stocks:
            # The further digits of a level do not depend on the seed of the run.
            level_generator = np.random.default_rng([0, level])
            self._stocks[level] = _stocks(
                level_generator, self._board, self.puzzles, level
            )
        stock = self._stocks[level][held_out]
        stock = stock.at(generator.integers(len(stock.guesses), size=count))
        grids = transform(generator, self._board, stock.givens, stock.solutions)
        return _encode(self._board, *grids, stock.guesses)

    @functools.cached_property
    def puzzles(self):
        with np.load(Path(__file__).with_name(f"{self.name}.npz")) as file:
            return Puzzles(file["givens"], file["solutions"])


def read_puzzles(path, side):
    """Reads Sudoku from a text file.

    A line holds the cells of a puzzle row by row: digits, and dots for empty cells.
    Empty lines are ignored.

    Args:
        path: The file.
        side: `4` or `6`. Cells of a row.

    Returns:
        `Examples`, in the order of the file.

    Raises:
        InputError: If the file cannot be read, or a puzzle does not have exactly one
            solution. The message names the line.

    Example:

    >>> _ = pathlib.Path("puzzles.txt").write_text("1..4.4..2......1")
    >>> read_puzzles("puzzles.txt", 4).targets[0, 0] + 1
    array([1, 2, 3, 4], dtype=int32)
    """
    board, lines = BOARDS[side], read_text(path).split("\n")
    read = [
        _read(board, line, f"line {number} of {path}")
        for number, line in enumerate(lines, start=1)
        if line
    ]
    givens, solutions, guesses = zip(*read, strict=True)
    return _encode(board, np.array(givens), np.array(solutions), guesses)


def _stocks(generator, board, puzzles, level):
    """Returns the training puzzles and the held-out puzzles, with their guesses.

    No symmetry maps one to the other. If the board has enough solutions, not even their
    solutions are symmetric.

    Args:
        generator: NumPy's `Generator`.
        board: `Board`.
        puzzles: Minimal `Puzzles`.
        level: Integer. The number of further given digits.
    """
    puzzles = with_further_givens(generator, puzzles, level)
    guesses = [solve(board, givens).guesses for givens in puzzles.givens]
    puzzles = puzzles._replace(guesses=np.array(guesses, "int32"))
    grids = puzzles.solutions if board.splits_solutions else puzzles.givens
    orbits = np.array([orbit(board, grid.tobytes()) for grid in grids])
    is_held_out = orbits % _HELD_OUT == 0
    return puzzles.at(~is_held_out), puzzles.at(is_held_out)


def _encode(board, givens, solutions, guesses):
    """Returns the `Examples` of puzzles.

    Args:
        board: `Board`.
        givens: Integer array `(puzzles, num_cells)`, 0 for empty cells.
        solutions: Integer array `(puzzles, num_cells)`.
        guesses: Integer array `(puzzles,)`.
    """
    shape = len(givens), board.side, board.side
    return Examples(
        np.reshape(givens, shape).astype("int32"),
        np.reshape(solutions, shape).astype("int32") - 1,
        np.ones(shape, "float32"),
        np.asarray(guesses, "int32"),
        np.full(len(givens), _DISTANCE, "int32"),
    )


def _read(board, line, place):
    """Returns the digits of a line, their solution and the number of guesses."""
    digits = "." + "".join(str(digit + 1) for digit in range(board.side))
    if len(line) != board.num_cells or set(line) - set(digits):
        raise InputError(
            f"Expected a puzzle of {board.num_cells} characters in {place}, digits 1 "
            f"to {board.side} and dots. Received: {len(line)}, {line[:100]!r}."
        )
    givens = [digits.index(character) for character in line]
    found = solve(board, givens)
    if len(found.solutions) != 1:
        count = "two or more" if found.solutions else "none"
        raise InputError(
            f"Expected a puzzle with one solution in {place}. Received: {count}."
        )
    return givens, found.solutions[0], found.guesses
