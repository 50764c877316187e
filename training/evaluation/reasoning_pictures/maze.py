"""Animated GIF of the solution of a maze."""

import numpy as np

from .animation import check_frames, progress, square, write_gif

_WALL = np.array([0.15, 0.15, 0.2])
_CORRIDOR = np.array([1.0, 1.0, 1.0])
_PATH = np.array([0.12, 0.47, 0.71])


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
    check_frames("probabilities", probabilities, evaluations, maze.shape[:2])
    is_corridor = maze.any(axis=-1)
    figure, axes = square()
    axes.set_axis_off()
    image = axes.imshow(maze_colors(maze, probabilities[0]))

    def draw(frame):
        image.set_data(maze_colors(maze, probabilities[frame]))
        is_wrong = (probabilities[frame] > 0.5) != (truth == 1)
        num_wrong = np.sum(is_wrong & is_corridor)
        axes.set_title(progress(evaluations[frame], num_wrong))

    write_gif(path, figure, draw, len(evaluations))


def maze_colors(maze, probabilities):
    """Returns the pixels of a frame, floats `(height, width, 3)` in [0, 1]."""
    share = np.clip(probabilities, 0.0, 1.0)[..., None]
    colors = (1 - share) * _CORRIDOR + share * _PATH
    is_end = maze.any(axis=-1, keepdims=True) & (maze.min(axis=-1, keepdims=True) == 0)
    colors = np.where(is_end, maze, colors)
    return np.where(maze.any(axis=-1, keepdims=True), colors, _WALL)
