"""Plots of reasoners, and animations of how they solve a problem."""

import keras
import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure

from deq_keras import diagnostics

from ...errors import InputError
from ...files.atomic_file import replacing

MOST_FRAMES = 60
_FRAMES_PER_SECOND = 8
# Duration of the last frame, in frames.
_LAST = 16
_GIF_DPI = 80

_WALL = np.array([0.15, 0.15, 0.2])
_CORRIDOR = np.array([1.0, 1.0, 1.0])
_PATH = np.array([0.12, 0.47, 0.71])
_ERROR = np.array([0.84, 0.15, 0.16])

_RIGHT = "tab:blue"
_WRONG = "tab:red"
# Opacity of a digit at chance probability or below.
_FAINTEST = 0.15


def plot_accuracy(path, levels):
    """Plots exact predictions over the budget. Replaces the file atomically.

    A dashed line in the color of a curve marks the floor of its level.

    Args:
        path: Path of the PNG or SVG file, in an existing folder.
        levels: List of dicts, results of `LevelMeasurement`.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for level in levels:
        budgets = [row["budget"] for row in level["budgets"]]
        percent = [100 * row["exact_match"] for row in level["budgets"]]
        (line,) = axes.plot(budgets, percent, marker="o", label=f"{level['level']}")
        if level["floor"]:
            axes.axvline(level["floor"], color=line.get_color(), ls="--", lw=1)
    if any(level["floor"] for level in levels):
        axes.plot([], [], color="grey", ls="--", lw=1, label="floor: distance / reach")
    axes.set_xscale("log", base=2)
    ticks = sorted({row["budget"] for level in levels for row in level["budgets"]})
    axes.set_xticks(ticks, ticks)
    axes.set(xlabel="function evaluations (NFE)", ylabel="exact answers [%]")
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def draw_solving(path, task, model, examples, num_evaluations):
    """Writes a GIF that shows how a model solves the first example.

    Args:
        path: Path of the file.
        task: The `ReasoningTask`.
        model: A `ReasonerTagger`.
        examples: `Examples` of the task.
        num_evaluations: Positive integer. Number of evaluations. The GIF has at most
            about 60 frames.
    """
    frames = probabilities(model, examples.inputs[:1], num_evaluations)
    draw(path, task, examples, frames, spread(num_evaluations, MOST_FRAMES))


def draw(path, task, examples, frames, evaluations):
    """Writes a GIF of the first example, with a frame for each of some evaluations.

    In a maze, corridors change from white to blue with their probability to be on the
    path. On a Sudoku, given digits are black. Other cells show the most likely digit,
    blue if it is correct and red otherwise. Less likely digits are fainter. The title
    shows the number of wrong positions. Replaces the file atomically.

    Args:
        path: Path of the GIF file, in an existing folder.
        task: The `ReasoningTask`.
        examples: `Examples` of the task.
        frames: Float array, what `probabilities` returns.
        evaluations: Sequence of integers. Evaluations to show, from 1.
    """
    figure = Figure(figsize=(4, 4.3))
    # An automatic layout would change from frame to frame.
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.96 * 4 / 4.3))
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with replacing(path) as temporary, writer.saving(figure, temporary, _GIF_DPI):
        for evaluation in evaluations:
            axes.clear()
            _draw_frame(axes, task, examples, frames[evaluation - 1], evaluation)
            writer.grab_frame()
        for _ in range(_LAST - 1):
            writer.grab_frame()


def draw_panels(path, task, examples, frames, evaluations):
    """Writes a row of pictures of the first example, one per evaluation; see `draw`.

    Positions are red where the most likely class is wrong, also in a maze.

    Args:
        path: Path of the PNG, SVG or PDF file, in an existing folder.
        task: The `ReasoningTask`.
        examples: `Examples` of the task.
        frames: Float array, what `probabilities` returns.
        evaluations: Sequence of integers. Evaluations to show, from 1.
    """
    figure = Figure(figsize=(2 * len(evaluations), 2.2), layout="constrained")
    panels = figure.subplots(1, len(evaluations), squeeze=False)[0]
    for axes, evaluation in zip(panels, evaluations, strict=True):
        _draw_frame(
            axes, task, examples, frames[evaluation - 1], evaluation, is_panel=True
        )
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=300)


def _draw_frame(axes, task, examples, probabilities, evaluation, is_panel=False):
    """Draws the first example with the class probabilities of one evaluation."""
    problem, truth = examples.inputs[0], examples.targets[0]
    _DRAW[task.name](axes, problem, probabilities, truth, task, is_panel)
    is_wrong = (probabilities.argmax(axis=-1) != truth) & (examples.weights[0] > 0)
    size = "medium" if is_panel else "large"
    progress = f"{is_wrong.sum()} wrong" if is_wrong.any() else "solved"
    axes.set_title(f"NFE {evaluation}: {progress}", fontsize=size)
    axes.set_axis_off()


def check_picture(task, level):
    """Raises `InputError` if problems of a task and a level cannot be drawn."""
    task.check_level(level)
    if task.name not in _DRAW:
        raise InputError(
            "`evaluation.picture` must be null for the task "
            f"`{task.name}`. Only these tasks have pictures: {', '.join(_DRAW)}."
        )


def probabilities(model, inputs, num_evaluations):
    """Returns the class probabilities after each evaluation, without a tolerance.

    Args:
        model: A `ReasonerTagger`.
        inputs: Array of one problem.
        num_evaluations: Positive integer. Number of evaluations.

    Returns:
        Float array `(evaluations, *positions, classes)`.
    """
    states = diagnostics.iterates(model, inputs, num_evaluations)[:, 0]
    return keras.ops.convert_to_numpy(keras.ops.softmax(model.head(states)))


def spread(last, count):
    """Returns at most about `count` integers from 1 to `last`, both included."""
    stride = max(1, -(-last // count))
    return [*range(1, last, stride), last]


def _draw_maze(axes, maze, probabilities, truth, task, is_panel):
    del task
    colors = _maze_colors(maze, probabilities[..., 1], truth if is_panel else None)
    axes.imshow(colors, interpolation="none")


def _maze_colors(maze, probabilities, truth=None):
    """Returns the pixels of a frame, floats `(height, width, 3)` in [0, 1].

    With a `truth`, wrong corridors are red.
    """
    share = np.clip(probabilities, 0.0, 1.0)[..., None]
    colors = (1 - share) * _CORRIDOR + share * _PATH
    if truth is not None:
        error = np.abs(share - truth[..., None])
        red = (1 - error) * _CORRIDOR + error * _ERROR
        colors = np.where(error > 0.5, red, colors)
    is_end = maze.any(axis=-1, keepdims=True) & (maze.min(axis=-1, keepdims=True) == 0)
    colors = np.where(is_end, maze, colors)
    return np.where(maze.any(axis=-1, keepdims=True), colors, _WALL)


def _draw_board(axes, board, probabilities, truth, task, is_panel):
    size = 60 if is_panel else 120
    _draw_digits(axes, board, probabilities, truth, task.box_shape, size)


def _draw_digits(axes, board, probabilities, truth, box_shape, size):
    """Draws a board. `size` is the height of all its digits together, in points."""
    _draw_grid(axes, len(board), box_shape)
    for (row, column), given in np.ndenumerate(board):
        digit = probabilities[row, column].argmax()
        color, alpha = "black", 1.0
        if not given:
            color = _RIGHT if digit == truth[row, column] else _WRONG
            # From `_FAINTEST` at chance to 1 at certainty.
            chance = 1 / len(board)
            share = (probabilities[row, column, digit] - chance) / (1 - chance)
            alpha = float(np.clip(share, _FAINTEST, 1.0))
        axes.text(
            column + 0.5,
            row + 0.5,
            str(given or digit + 1),
            color=color,
            alpha=alpha,
            weight="bold" if given else "normal",
            **{"ha": "center", "va": "center", "size": size / len(board)},
        )


def _draw_grid(axes, side, box_shape):
    axes.set(xlim=(0, side), ylim=(side, 0), aspect="equal")
    height, width = box_shape
    for line in range(side + 1):
        axes.axhline(line, color="black", lw=3 if line % height == 0 else 0.5)
        axes.axvline(line, color="black", lw=3 if line % width == 0 else 0.5)


# Function of a task that draws a problem and class probabilities.
_DRAW = {"mazes": _draw_maze, "sudoku_4x4": _draw_board, "sudoku_6x6": _draw_board}
