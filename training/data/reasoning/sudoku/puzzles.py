"""Makes puzzles that have one solution."""

from typing import NamedTuple

import numpy as np

from .solver import is_needed, search


class Puzzles(NamedTuple):
    """Puzzles of one board, each with its only solution.

    Attributes:
        givens: uint8 array `(puzzles, num_cells)`, 0 where no digit is given.
        solutions: uint8 array `(puzzles, num_cells)`.
    """

    givens: np.ndarray
    solutions: np.ndarray


def minimal(generator, board, count):
    """Draws minimal `Puzzles`: none has one solution with a digit less.

    The solution is the first one of a search that tries digits in random order. Its
    digits are taken away in random order, as far as they are not needed.
    """
    solutions = [_full(generator, board) for _ in range(count)]
    givens = [_stripped(generator, board, solution) for solution in solutions]
    return Puzzles(np.array(givens, "uint8"), np.array(solutions, "uint8"))


def with_further_givens(generator, puzzles, count):
    """Returns the `Puzzles` with `count` more digits of the solution given in each."""
    givens, solutions = puzzles
    order = np.tile(np.arange(givens.shape[1]), (len(givens), 1))
    order = generator.permuted(order, axis=1)
    # Empty cells first, in random order.
    is_given = np.take_along_axis(givens, order, axis=1) > 0
    order = np.take_along_axis(order, is_given.argsort(axis=1, kind="stable"), axis=1)
    givens, chosen = givens.copy(), order[:, :count]
    digits = np.take_along_axis(solutions, chosen, axis=1)
    np.put_along_axis(givens, chosen, digits, axis=1)
    return Puzzles(givens, solutions)


def _full(generator, board):
    def shuffled(digits):
        return generator.permutation(digits).tolist()

    empty = [0] * board.num_cells
    return search(board, empty, limit=1, order=shuffled).solutions[0]


def _stripped(generator, board, solution):
    puzzle = list(solution)
    for cell in generator.permutation(board.num_cells):
        if not is_needed(board, puzzle, cell):
            puzzle[cell] = 0
    return puzzle
