"""Perfect mazes: no more passages than it takes to connect all cells."""

import numpy as np

_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))


def carve(generator, cells):
    """Draws a maze by a randomised depth-first search from a random cell.

    Args:
        generator: NumPy's `Generator`.
        cells: int >= 1. Cells of a side.

    Returns:
        A bool array `(2 * cells + 1, 2 * cells + 1)`, true at corridors. The cell of a
        row and a column is at `[2 * row + 1, 2 * column + 1]`, the passage between two
        cells between them. Passages are a spanning tree of the cells, so that one path
        leads from a cell to another.
    """
    root = tuple(generator.integers(cells, size=2).tolist())
    closed = {(row, column) for row in range(cells) for column in range(cells)} - {root}
    trail, passages = [root], []
    while trail:
        row, column = trail[-1]
        around = [(row + down, column + right) for down, right in _STEPS]
        choices = [cell for cell in around if cell in closed]
        if not choices:
            trail.pop()
            continue
        chosen = choices[generator.integers(len(choices))]
        passages.append((row + chosen[0] + 1, column + chosen[1] + 1))
        closed.remove(chosen)
        trail.append(chosen)
    is_open = np.zeros((2 * cells + 1, 2 * cells + 1), bool)
    is_open[1::2, 1::2] = True
    is_open[tuple(np.array(passages, int).reshape(-1, 2).T)] = True
    return is_open
