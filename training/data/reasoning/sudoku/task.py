"""The task of solving Sudoku."""

import functools

import numpy as np

from ..task import Examples, Levels, ReasoningTask, check_count
from .board import find_board
from .puzzles import minimal
from .stock import stocks
from .symmetry import transformed

# Steps between cells that share no row, column or box: both share one with a third.
_DISTANCE = 2


class Sudoku(ReasoningTask):
    """The digits of all cells of a puzzle that has one solution.

    Puzzles have `side x side` cells in boxes of 2 x 2, or of 2 rows and 3 columns. The
    level is how many more digits are given than in a minimal puzzle, which has other
    solutions without any of them. The input of a cell is a token: 0 where it is empty,
    or its digit, `(side, side)`. The target is the digit less one; every cell counts,
    those whose digit is given too.

    Examples are drawn symmetries of `num_puzzles` puzzles, so that of 6 x 6 cells
    hardly one is met twice: digits change names, and bands, stacks, rows and columns
    places. No symmetry makes an example of training of one that is held out. Of 6 x 6
    cells solutions are held out, of 49 that differ by more than a symmetry. Of 4 x 4
    cells there are two such solutions, so that puzzles are held out, of 36 minimal ones
    that differ.

    Difficulty is how often a solver has to guess that fills cells to which one digit is
    left: never, where there are 4 x 4 cells. Distance is 2, in steps to a cell of the
    same row, column or box.

    Args:
        side: `4` or `6`.
        num_puzzles: int >= 1. How many puzzles examples are symmetries of, those held
            out among them. They are drawn when they are first needed, 2000 of 6 x 6
            cells in about ten seconds. Defaults to `2000`.
        seed: int. What they are drawn from. Defaults to `0`.

    Attributes:
        box_shape: `(rows, columns)` of a box.

    Raises:
        InputError: if an argument is out of its range.

    Example:

    >>> puzzles = Sudoku(4).examples(np.random.default_rng(0), 2, level=3)
    >>> puzzles.inputs.shape, puzzles.targets.shape
    ((2, 4, 4), (2, 4, 4))
    """

    def __init__(self, side, num_puzzles=2000, seed=0):
        self._board = find_board(side)
        check_count("num_puzzles", num_puzzles)
        self.name = f"sudoku_{side}x{side}"
        self.num_classes = side
        self.num_tokens = side + 1
        # A minimal puzzle leaves more than half of the cells empty.
        self.levels = Levels("how many more digits are given", 0, side**2 // 2)
        self.box_shape = self._board.box_height, self._board.box_width
        self._num_puzzles = num_puzzles
        self._seed = seed
        self._stocks = {}

    def positions(self, level):
        del level
        return (self._board.side, self._board.side)

    def _draw(self, generator, count, level, held_out):
        stock = self._stocks_of(level)[held_out]
        stock = stock.at(generator.integers(len(stock.guesses), size=count))
        grids = transformed(generator, self._board, *stock.puzzles)
        return encode(self._board, *grids, stock.guesses)

    def _stocks_of(self, level):
        if level not in self._stocks:
            generator = np.random.default_rng([self._seed, level])
            found = stocks(generator, self._board, self._minimal, level)
            self._stocks[level] = found
        return self._stocks[level]

    @functools.cached_property
    def _minimal(self):
        generator = np.random.default_rng(self._seed)
        return minimal(generator, self._board, self._num_puzzles)


def encode(board, givens, solutions, guesses):
    """Returns the `Examples` of puzzles.

    Args:
        board: the `Board`.
        givens: int array `(puzzles, num_cells)`, 0 where no digit is given.
        solutions: int array `(puzzles, num_cells)`.
        guesses: int array `(puzzles,)`.
    """
    shape = len(givens), board.side, board.side
    return Examples(
        np.reshape(givens, shape).astype("int32"),
        np.reshape(solutions, shape).astype("int32") - 1,
        np.ones(shape, "float32"),
        np.asarray(guesses, "int32"),
        np.full(len(givens), _DISTANCE, "int32"),
    )
