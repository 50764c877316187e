"""The boards of Sudoku: solve puzzles, add givens, apply symmetries."""

import functools
import itertools
import zlib
from typing import NamedTuple

import numpy as np


class Puzzles(NamedTuple):
    """Puzzles of one board, each with its unique solution.

    Attributes:
        givens: uint8 array `(puzzles, num_cells)`, 0 for empty cells.
        solutions: uint8 array `(puzzles, num_cells)`.
        guesses: Integer array `(puzzles,)`, how hard they are; see `Solutions`. `None`
            if unknown.
    """

    givens: np.ndarray
    solutions: np.ndarray
    guesses: np.ndarray | None = None

    def at(self, places):
        """Returns the puzzles at indices, or selected by a mask."""
        return Puzzles(*(array[places] for array in self))


class Board:
    """A board of boxes; its rows, columns and boxes hold every digit once.

    A puzzle is a sequence of `num_cells` digits, row by row, and 0 for empty cells.

    Args:
        box_height: Integer. Rows of a box.
        box_width: Integer. Columns of a box.
        splits_solutions: Boolean. Whether the board has enough solutions, up to
            symmetries, to hold solutions out. Otherwise puzzles are held out.

    Attributes:
        side: Integer. Digits, and cells of a row, a column or a box.
        num_cells: Integer. Cells of the board.
        box_height: see above.
        box_width: see above.
        splits_solutions: see above.
        units: List of three integers for each cell: its row, column and box, numbered
            consecutively.
    """

    def __init__(self, box_height, box_width, splits_solutions):
        self.side = box_height * box_width
        self.num_cells = self.side**2
        self.box_height = box_height
        self.box_width = box_width
        self.splits_solutions = splits_solutions
        rows, columns = np.divmod(np.arange(self.num_cells), self.side)
        boxes = rows // box_height * box_height + columns // box_width
        units = np.stack([rows, self.side + columns, 2 * self.side + boxes], axis=1)
        self.units = units.tolist()


BOARDS = {
    4: Board(2, 2, splits_solutions=False),
    6: Board(2, 3, splits_solutions=True),
}


class Solutions(NamedTuple):
    """The solutions of a puzzle, and how hard it is.

    Attributes:
        solutions: List of lists of digits.
        guesses: Integer. How often every empty cell had at least two candidates.
    """

    solutions: list
    guesses: int


def solve(board, puzzle, limit=2, order=list):
    """Returns solutions of a puzzle, found by backtracking.

    The next cell is an empty one with the fewest candidates: digits that its row,
    column and box do not hold.

    Args:
        board: `Board`.
        puzzle: Sequence of `num_cells` digits, 0 for empty cells.
        limit: Integer. The most solutions to find. Defaults to `2`, which shows whether
            a solution is unique.
        order: Function from a list of digits to the order in which they are tried.

    Returns:
        `Solutions`; empty if two digits contradict each other.
    """
    grid = _Grid(board)
    for cell, digit in enumerate(map(int, puzzle)):
        if digit:
            if not grid.candidates(cell) >> digit & 1:
                return Solutions([], 0)
            grid.put(cell, digit)
    solutions = []
    guesses = _descend(grid, solutions, limit, order)
    return Solutions(solutions, guesses)


class _Grid:
    """The digits in cells, and the digits of each row, column and box, as bits."""

    def __init__(self, board):
        self.digits = [0] * board.num_cells
        self._units = board.units
        self._held = [0] * (3 * board.side)
        self._all = 2 ** (board.side + 1) - 2  # The bits 1 ... side.

    def candidates(self, cell):
        row, column, box = self._units[cell]
        held = self._held
        return self._all & ~(held[row] | held[column] | held[box])

    def put(self, cell, digit):
        self.digits[cell] = digit
        self._toggle(cell, digit)

    def take(self, cell, digit):
        self.digits[cell] = 0
        self._toggle(cell, digit)

    def _toggle(self, cell, digit):
        for unit in self._units[cell]:
            self._held[unit] ^= 1 << digit

    def tightest(self):
        """Returns the empty cell with the fewest candidates, and these as bits.

        The cell is `None` if the grid is full.
        """
        best, best_left, fewest = None, 0, len(self.digits)
        for cell, digit in enumerate(self.digits):
            if digit:
                continue
            left = self.candidates(cell)
            count = left.bit_count()
            if count < fewest:
                best, best_left, fewest = cell, left, count
                if count < 2:
                    break
        return best, best_left


def _descend(grid, solutions, limit, order):
    cell, left = grid.tightest()
    if cell is None:
        solutions.append(grid.digits.copy())
        return 0
    guesses = int(left.bit_count() > 1)
    for digit in order([d for d in range(1, left.bit_length()) if left >> d & 1]):
        grid.put(cell, digit)
        guesses += _descend(grid, solutions, limit, order)
        grid.take(cell, digit)
        if len(solutions) >= limit:
            break
    return guesses


def with_further_givens(generator, puzzles, count):
    """Returns the `Puzzles` with `count` more digits of the solution given in each."""
    givens, solutions, _ = puzzles
    order = np.tile(np.arange(givens.shape[1]), (len(givens), 1))
    order = generator.permuted(order, axis=1)
    # Empty cells first, in random order.
    is_given = np.take_along_axis(givens, order, axis=1) > 0
    order = np.take_along_axis(order, is_given.argsort(axis=1, kind="stable"), axis=1)
    givens, chosen = givens.copy(), order[:, :count]
    digits = np.take_along_axis(solutions, chosen, axis=1)
    np.put_along_axis(givens, chosen, digits, axis=1)
    return Puzzles(givens, solutions)


def transform(generator, board, *grids):
    """Applies a uniformly drawn symmetry to each row of the grids.

    Symmetries rename digits and permute bands, rows within a band, stacks, and columns
    within a stack; boards of square boxes may be transposed. The number of solutions
    stays the same.

    Args:
        generator: NumPy's `Generator`.
        board: `Board`.
        *grids: Integer arrays `(batch, num_cells)`. Equal rows of all arrays undergo
            the same symmetry.

    Returns:
        A list of the transformed arrays.
    """
    sources = _sources(board)
    count = len(grids[0])
    sources = sources[generator.integers(len(sources), size=count)]
    names = np.tile(np.arange(board.side + 1), (count, 1))
    names[:, 1:] = generator.permuted(names[:, 1:], axis=1)
    return [
        np.take_along_axis(names, np.take_along_axis(grid, sources, axis=1), axis=1)
        for grid in grids
    ]


@functools.lru_cache(maxsize=2**14)
def orbit(board, grid):
    """Returns a number that all symmetric images of a grid share.

    It is the checksum of the lexicographically smallest image, whose digits are named
    in the order in which they appear.

    Args:
        board: `Board`.
        grid: Bytes, the digit of each cell, 0 for empty cells.
    """
    images = np.frombuffer(grid, "uint8")[_sources(board).T]  # (cells, symmetries)
    names = np.zeros((images.shape[1], board.side + 1), "uint8")
    num_named = np.zeros(len(names), "uint8")
    least = bytearray()
    for cell in range(board.num_cells):
        rows, digits = np.arange(len(names)), images[cell]
        named = names[rows, digits]
        is_new = (named == 0) & (digits > 0)
        num_named += is_new
        named = np.where(is_new, num_named, named)
        names[rows, digits] = named
        # Keeps the images that are smallest up to this cell.
        least.append(named.min())
        is_least = named == least[-1]
        if not is_least.all():
            images, names = images[:, is_least], names[is_least]
            num_named = num_named[is_least]
    return zlib.crc32(least)


@functools.cache
def _sources(board):
    """Returns the source cell of each cell, `(symmetries, num_cells)`."""
    rows = _orders(board.side, board.box_height)
    columns = _orders(board.side, board.box_width)
    grids = rows[:, None, :, None] * board.side + columns[None, :, None, :]
    places = grids.reshape(-1, board.side, board.side)
    if board.box_height == board.box_width:
        places = np.concatenate([places, places.swapaxes(1, 2)])
    return places.reshape(len(places), -1)


def _orders(side, group):
    """Returns the orders of lines that keep groups of lines together."""
    lines = np.arange(side).reshape(-1, group)
    within = list(itertools.permutations(range(group)))
    return np.array(
        [
            np.concatenate([lines[g, list(order)] for g, order in zip(groups, orders)])
            for groups in itertools.permutations(range(len(lines)))
            for orders in itertools.product(within, repeat=len(lines))
        ]
    )
