"""The symmetries of a board, which turn puzzles into puzzles."""

import functools
import itertools
import zlib

import numpy as np


def transformed(generator, board, *grids):
    """Applies symmetries that are drawn evenly, one for each row of the grids.

    Digits change names; bands change places, and rows within a band, stacks, and
    columns within a stack; where boxes are square, rows may become columns. The number
    of solutions stays what it was.

    Args:
        generator: NumPy's `Generator`.
        board: the `Board`.
        *grids: int arrays `(batch, num_cells)`. A row of each is transformed alike.

    Returns:
        A list of as many arrays.
    """
    places = _places(board)
    count = len(grids[0])
    places = places[generator.integers(len(places), size=count)]
    names = np.tile(np.arange(board.side + 1), (count, 1))
    names[:, 1:] = generator.permuted(names[:, 1:], axis=1)
    return [
        np.take_along_axis(names, np.take_along_axis(grid, places, axis=1), axis=1)
        for grid in grids
    ]


@functools.lru_cache(maxsize=2**14)
def orbit(board, grid):
    """Returns a number of all that symmetries make of a grid: they share it.

    It is the checksum of the least of them in lexicographic order, whose digits are
    named in the order in which they appear.

    Args:
        board: the `Board`.
        grid: bytes, the digit of each cell, 0 where it is empty.
    """
    images = np.frombuffer(grid, "uint8")[_places(board).T]  # (cells, symmetries)
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
        # Those go on that are the least up to this cell.
        least.append(named.min())
        is_least = named == least[-1]
        if not is_least.all():
            images, names = images[:, is_least], names[is_least]
            num_named = num_named[is_least]
    return zlib.crc32(least)


@functools.cache
def _places(board):
    """Returns where the digit of each cell comes from, `(symmetries, num_cells)`."""
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
