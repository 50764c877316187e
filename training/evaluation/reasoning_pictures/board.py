"""A Sudoku that is filled, as animated GIF and as PNG."""

import numpy as np

from ...files.atomic_file import replacing
from .animation import check_frames, progress, square, write_gif

_RIGHT = "tab:blue"
_WRONG = "tab:red"
# Opacity of a digit that is at most as likely as the others.
_FAINTEST = 0.15
_DPI = 120


def animate_board(path, board, probabilities, truth, evaluations, box_shape):
    """Draws how a Sudoku is filled; the file is replaced atomically.

    Given digits are black. The others are the most likely ones, blue where they are
    right, red where they are wrong, and the fainter the less likely they are.

    Args:
        path: the GIF file, in an existing folder.
        board: int array `(side, side)`, the input of the task `Sudoku`.
        probabilities: float array `(evaluations, side, side, side)`, of the digits of
            each cell.
        truth: int array `(side, side)`, its targets.
        evaluations: sequence of ints, after which evaluation each frame is.
        box_shape: `(rows, columns)` of a box.

    Raises:
        ValueError: if the shapes do not fit.
    """
    check_frames(
        "probabilities", probabilities, evaluations, (*board.shape, len(board))
    )
    figure, axes = square()

    def draw(frame):
        _draw(axes, board, probabilities[frame], truth, box_shape)
        num_wrong = np.sum(probabilities[frame].argmax(axis=-1) != truth)
        axes.set_title(progress(evaluations[frame], num_wrong))

    write_gif(path, figure, draw, len(evaluations))


def draw_board(path, board, probabilities, truth, box_shape):
    """Draws one frame of `animate_board` as PNG; the file is replaced atomically.

    Args:
        path: the PNG file, in an existing folder.
        board: as in `animate_board`.
        probabilities: float array `(side, side, side)`.
        truth: as in `animate_board`.
        box_shape: as in `animate_board`.

    Raises:
        ValueError: if the shapes do not fit.
    """
    check_frames("probabilities", probabilities[None], [0], (*board.shape, len(board)))
    figure, axes = square()
    _draw(axes, board, probabilities, truth, box_shape)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=_DPI)


def _draw(axes, board, probabilities, truth, box_shape):
    axes.clear()
    _draw_lines(axes, len(board), box_shape)
    for (row, column), given in np.ndenumerate(board):
        digit = probabilities[row, column].argmax()
        color, alpha = "black", 1.0
        if not given:
            color = _RIGHT if digit == truth[row, column] else _WRONG
            alpha = _strength(probabilities[row, column, digit], len(board))
        axes.text(
            column + 0.5,
            row + 0.5,
            str(given or digit + 1),
            color=color,
            alpha=alpha,
            weight="bold" if given else "normal",
            **{"ha": "center", "va": "center", "size": 120 / len(board)},
        )


def _strength(probability, side):
    """From the faintest at an even chance to 1 at certainty."""
    share = (probability - 1 / side) / (1 - 1 / side)
    return float(np.clip(share, _FAINTEST, 1.0))


def _draw_lines(axes, side, box_shape):
    axes.set(xlim=(0, side), ylim=(side, 0), aspect="equal")
    axes.set_axis_off()
    height, width = box_shape
    for line in range(side + 1):
        axes.axhline(line, color="black", lw=3 if line % height == 0 else 0.5)
        axes.axvline(line, color="black", lw=3 if line % width == 0 else 0.5)
