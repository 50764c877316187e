"""Counts the solutions of Sudoku."""

from typing import NamedTuple


class Search(NamedTuple):
    """What a search has found.

    Attributes:
        solutions: list of lists of digits.
        guesses: int. How many times every empty cell had two digits or more left.
    """

    solutions: list
    guesses: int


def search(board, puzzle, limit=2, order=list):
    """Looks for solutions: always in the empty cell that has the fewest digits left.

    A digit is left to a cell if its row, its column and its box do not hold it.

    Args:
        board: the `Board`.
        puzzle: sequence of `num_cells` digits, 0 where none is given.
        limit: int. Where the search stops. Defaults to `2`, which tells whether a
            solution is the only one.
        order: function of a list of digits to the order in which they are tried.

    Returns:
        A `Search`; without solutions if two digits contradict each other.
    """
    grid = _Grid(board)
    for cell, digit in enumerate(map(int, puzzle)):
        if digit:
            if not grid.left(cell) >> digit & 1:
                return Search([], 0)
            grid.put(cell, digit)
    solutions = []
    guesses = _descend(grid, solutions, limit, order)
    return Search(solutions, guesses)


def is_needed(board, puzzle, cell):
    """Returns whether a puzzle of one solution has others without one of its digits.

    They have another digit in its place.
    """
    others = list(puzzle)
    for digit in range(1, board.side + 1):
        others[cell] = digit
        if digit != puzzle[cell] and search(board, others, limit=1).solutions:
            return True
    return False


class _Grid:
    """Digits in cells, and which of them each row, column and box holds, as bits."""

    def __init__(self, board):
        self.digits = [0] * board.num_cells
        self._units = board.units
        self._held = [0] * (3 * board.side)
        self._all = 2 ** (board.side + 1) - 2  # The bits 1 ... side.

    def left(self, cell):
        row, column, box = self._units[cell]
        held = self._held
        return self._all & ~(held[row] | held[column] | held[box])

    def put(self, cell, digit):
        self.digits[cell] = digit
        self._turn(cell, digit)

    def take(self, cell, digit):
        self.digits[cell] = 0
        self._turn(cell, digit)

    def _turn(self, cell, digit):
        for unit in self._units[cell]:
            self._held[unit] ^= 1 << digit

    def tightest(self):
        """Returns the empty cell with the fewest digits left, and these as bits; `None`
        of a full grid."""
        best, best_left, fewest = None, 0, len(self.digits)
        for cell, digit in enumerate(self.digits):
            if digit:
                continue
            left = self.left(cell)
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
