"""The puzzles that examples are symmetries of, for training and held out."""

from typing import NamedTuple

import numpy as np

from ....errors import InputError
from .puzzles import Puzzles, with_further_givens
from .solver import search
from .symmetry import orbit

# One orbit in five is held out, or about as many.
_HELD_OUT = 5


class Stock(NamedTuple):
    """Puzzles, and how hard they are.

    Attributes:
        puzzles: the `Puzzles`.
        guesses: int array `(puzzles,)`, of `Search`.
    """

    puzzles: Puzzles
    guesses: np.ndarray

    def at(self, places):
        """Returns those at indices, or where a mask is true."""
        givens, solutions = (grids[places] for grids in self.puzzles)
        return Stock(Puzzles(givens, solutions), self.guesses[places])


def stocks(generator, board, puzzles, level):
    """Returns the `Stock` of training and the one that is held out.

    No symmetry makes a puzzle of one of a puzzle of the other. Where the board has
    solutions enough, not even their solutions are symmetric.

    Args:
        generator: NumPy's `Generator`.
        board: the `Board`.
        puzzles: minimal `Puzzles`.
        level: int. How many digits more are given.

    Raises:
        InputError: if one of the two is empty.
    """
    puzzles = with_further_givens(generator, puzzles, level)
    guesses = [search(board, givens).guesses for givens in puzzles.givens]
    whole = Stock(puzzles, np.array(guesses, "int32"))
    grids = puzzles.solutions if board.splits_solutions else puzzles.givens
    orbits = np.array([orbit(board, grid.tobytes()) for grid in grids])
    is_held_out = orbits % _HELD_OUT == 0
    if is_held_out.all() or not is_held_out.any():
        raise InputError(
            "`num_puzzles` must be large enough for puzzles to train on and others to "
            f"hold out. Received: num_puzzles={len(grids)}."
        )
    return whole.at(~is_held_out), whole.at(is_held_out)
