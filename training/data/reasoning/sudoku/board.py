"""The boards of Sudoku: which cells hold every digit once."""

import numpy as np

from ....errors import InputError


class Board:
    """A board of boxes, as many digits as a box has cells.

    A puzzle is a sequence of `num_cells` digits, row by row, 0 where none is given.

    Args:
        box_height: int. Rows of a box.
        box_width: int. Columns of a box.
        splits_solutions: bool. Whether there are solutions enough, up to symmetries, to
            hold some of them out. Otherwise puzzles are.

    Attributes:
        side: int. Digits, and cells of a row, of a column and of a box.
        num_cells: int.
        box_height: int.
        box_width: int.
        splits_solutions: bool.
        units: list of three ints for each cell: its row, its column and its box, in one
            count.
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


_BOARDS = (
    Board(2, 2, splits_solutions=False),
    Board(2, 3, splits_solutions=True),
)


def find_board(side):
    """Returns the `Board` of a side.

    Raises:
        InputError: if there is none.
    """
    for board in _BOARDS:
        if board.side == side:
            return board
    raise InputError(f"`side` must be 4 or 6, cells of a row. Received: side={side!r}.")
