"""Figures and animations of how a model solves problems, evaluation by evaluation."""

from typing import NamedTuple

import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure

from ..files.atomic_file import replacing

_FRAMES_PER_SECOND = 8
# Duration of the last frame, in frames.
_LAST = 16
_GIF_DPI = 80
_PNG_DPI = 120

_WALL = np.array([0.15, 0.15, 0.2])
_CORRIDOR = np.array([1.0, 1.0, 1.0])
_PATH = np.array([0.12, 0.47, 0.71])

_RIGHT = "tab:blue"
_WRONG = "tab:red"
# Opacity of a digit at chance probability or below.
_FAINTEST = 0.15


class AccuracyCurve(NamedTuple):
    """Accuracy on problems of one size over the budget.

    Attributes:
        label: String. Size of the problems.
        budgets: Sequence of positive integers. Numbers of evaluations.
        accuracies: Sequence of floats in [0, 1]. Fraction of exact predictions at each
            budget.
        floor: Number or `None`. Minimum evaluations in which information can travel far
            enough; see `least_evaluations`. `None` draws no line.
    """

    label: str
    budgets: list
    accuracies: list
    floor: float | None


def plot_accuracy(path, curves):
    """Plots exact predictions over the budget. Replaces the file atomically.

    A dashed line in the color of a curve marks its floor.

    Args:
        path: Path of the PNG or SVG file, in an existing folder.
        curves: List of `AccuracyCurve`.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        percent = [100 * accuracy for accuracy in curve.accuracies]
        (line,) = axes.plot(curve.budgets, percent, marker="o", label=curve.label)
        if curve.floor:
            axes.axvline(curve.floor, color=line.get_color(), ls="--", lw=1)
    if any(curve.floor for curve in curves):
        axes.plot([], [], color="grey", ls="--", lw=1, label="floor: distance / reach")
    axes.set_xscale("log", base=2)
    budgets = sorted({budget for curve in curves for budget in curve.budgets})
    axes.set_xticks(budgets, budgets)
    axes.set(xlabel="function evaluations (NFE)", ylabel="exact answers [%]")
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def animate_maze(path, maze, probabilities, truth, evaluations):
    """Animates the solution of a maze. Replaces the file atomically.

    Corridors change from white to blue with their probability to be on the path. The
    title shows the number of misclassified corridors.

    Args:
        path: Path of the GIF file, in an existing folder.
        maze: Float array `(height, width, 3)`. Input of the task `Mazes`.
        probabilities: Float array `(evaluations, height, width)`. Probabilities to be
            on the path.
        truth: Integer array `(height, width)`. 1 on the path.
        evaluations: Sequence of integers. Evaluation of each frame.

    Raises:
        ValueError: If the shapes do not match.
    """
    _check_frames(probabilities, evaluations, maze.shape[:2])
    is_corridor = maze.any(axis=-1)
    figure, axes = _square()
    axes.set_axis_off()
    image = axes.imshow(_maze_colors(maze, probabilities[0]))

    def draw(frame):
        image.set_data(_maze_colors(maze, probabilities[frame]))
        is_wrong = (probabilities[frame] > 0.5) != (truth == 1)
        num_wrong = np.sum(is_wrong & is_corridor)
        axes.set_title(_progress(evaluations[frame], num_wrong))

    _write_gif(path, figure, draw, len(evaluations))


def _maze_colors(maze, probabilities):
    """Returns the pixels of a frame, floats `(height, width, 3)` in [0, 1]."""
    share = np.clip(probabilities, 0.0, 1.0)[..., None]
    colors = (1 - share) * _CORRIDOR + share * _PATH
    is_end = maze.any(axis=-1, keepdims=True) & (maze.min(axis=-1, keepdims=True) == 0)
    colors = np.where(is_end, maze, colors)
    return np.where(maze.any(axis=-1, keepdims=True), colors, _WALL)


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
    _check_frames(probabilities, evaluations, (*board.shape, len(board)))
    figure, axes = _square()

    def draw(frame):
        _draw_digits(axes, board, probabilities[frame], truth, box_shape)
        num_wrong = np.sum(probabilities[frame].argmax(axis=-1) != truth)
        axes.set_title(_progress(evaluations[frame], num_wrong))

    _write_gif(path, figure, draw, len(evaluations))


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
    _check_frames(probabilities[None], [0], (*board.shape, len(board)))
    figure, axes = _square()
    _draw_digits(axes, board, probabilities, truth, box_shape)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=_PNG_DPI)


def _draw_digits(axes, board, probabilities, truth, box_shape):
    axes.clear()
    _draw_grid(axes, len(board), box_shape)
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


def _draw_grid(axes, side, box_shape):
    axes.set(xlim=(0, side), ylim=(side, 0), aspect="equal")
    axes.set_axis_off()
    height, width = box_shape
    for line in range(side + 1):
        axes.axhline(line, color="black", lw=3 if line % height == 0 else 0.5)
        axes.axvline(line, color="black", lw=3 if line % width == 0 else 0.5)


def _write_gif(path, figure, draw, num_frames):
    """Writes an animated GIF of a figure. Replaces the file atomically.

    Args:
        path: Path of the GIF file, in an existing folder.
        figure: `Figure` of matplotlib.
        draw: Function that draws the frame of an index into the figure.
        num_frames: Positive integer. Number of frames.
    """
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with replacing(path) as temporary, writer.saving(figure, temporary, _GIF_DPI):
        for frame in range(num_frames):
            draw(frame)
            writer.grab_frame()
        for _ in range(_LAST - 1):
            writer.grab_frame()


def _square():
    """Returns a figure with square axes below a title, and its axes."""
    figure = Figure(figsize=(4, 4.3))
    # An automatic layout would change from frame to frame.
    return figure, figure.add_axes((0.02, 0.02, 0.96, 0.96 * 4 / 4.3))


def _progress(evaluation, num_wrong):
    """Returns the title of a frame."""
    return f"NFE {evaluation}: {f'{num_wrong} wrong' if num_wrong else 'solved'}"


def _check_frames(probabilities, evaluations, shape):
    """Raises `ValueError` unless there is one frame of a shape per evaluation."""
    if not len(evaluations) or probabilities.shape != (len(evaluations), *shape):
        raise ValueError(
            f"`probabilities` must have the shape (evaluations, *{shape}), and at "
            "least one evaluation. Received: probabilities of shape "
            f"{probabilities.shape}, {len(evaluations)} evaluations."
        )
