"""Pictures of the solution of a Sudoku, as animated GIF and as PNG."""

import numpy as np

from ...files.atomic_file import replacing
from .animation import check_frames, progress, square, write_gif

_RIGHT = "tab:blue"
_WRONG = "tab:red"
# Opacity of a digit at chance probability or below.
_FAINTEST = 0.15
_DPI = 120


def animate_board(path, board, probabilities, truth, evaluations, box_shape):
    """Animates the solution of a Sudoku. Replaces the file atomically.

    Given digits are black. Other cells show the most likely digit, blue if it is
    correct and red otherwise. Less likely digits are fainter.

    Args:
        path: Path of the GIF file, in an existing folder.
        board: Integer array `(side, side)`. Input of the task `Sudoku`.
        probabilities: Float array `(evaluations, side, side, side)`. Probabilities of
            the digits of each cell.
        truth: Integer array `(side, side)`. Targets of the task.
        evaluations: Sequence of integers. Evaluation of each frame.
        box_shape: Tuple `(rows, columns)`. Shape of a box.

    Raises:
        ValueError: If the shapes do not match.
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
    """Draws one frame of `animate_board` as PNG. Replaces the file atomically.

    Args:
        path: Path of the PNG file, in an existing folder.
        board: See `animate_board`.
        probabilities: Float array `(side, side, side)`.
        truth: See `animate_board`.
        box_shape: See `animate_board`.

    Raises:
        ValueError: If the shapes do not match.
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
    """Returns the opacity of a digit, from `_FAINTEST` at chance to 1 at certainty."""
    share = (probability - 1 / side) / (1 - 1 / side)
    return float(np.clip(share, _FAINTEST, 1.0))


def _draw_lines(axes, side, box_shape):
    axes.set(xlim=(0, side), ylim=(side, 0), aspect="equal")
    axes.set_axis_off()
    height, width = box_shape
    for line in range(side + 1):
        axes.axhline(line, color="black", lw=3 if line % height == 0 else 0.5)
        axes.axvline(line, color="black", lw=3 if line % width == 0 else 0.5)
