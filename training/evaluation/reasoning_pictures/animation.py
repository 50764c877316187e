"""Writes animated GIFs."""

from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure

from ...files.atomic_file import replacing

_FRAMES_PER_SECOND = 8
# Duration of the last frame, in frames.
_LAST = 16
_DPI = 80


def write_gif(path, figure, draw, num_frames):
    """Writes an animated GIF of a figure. Replaces the file atomically.

    Args:
        path: Path of the GIF file, in an existing folder.
        figure: `Figure` of matplotlib.
        draw: Function that draws the frame of an index into the figure.
        num_frames: Positive integer. Number of frames.
    """
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with replacing(path) as temporary, writer.saving(figure, temporary, _DPI):
        for frame in range(num_frames):
            draw(frame)
            writer.grab_frame()
        for _ in range(_LAST - 1):
            writer.grab_frame()


def square():
    """Returns a figure with square axes below a title, and its axes."""
    figure = Figure(figsize=(4, 4.3))
    # An automatic layout would change from frame to frame.
    return figure, figure.add_axes((0.02, 0.02, 0.96, 0.96 * 4 / 4.3))


def progress(evaluation, num_wrong):
    """Returns the title of a frame."""
    return f"NFE {evaluation}: {f'{num_wrong} wrong' if num_wrong else 'solved'}"


def check_frames(name, frames, evaluations, shape):
    """Raises `ValueError` unless there is one frame of a shape per evaluation.

    Args:
        name: String. Name of the argument `frames`, for messages.
        frames: Array of the frames.
        evaluations: Sequence of integers. Evaluation of each frame.
        shape: Tuple of integers. Expected shape of each frame.
    """
    if not len(evaluations) or frames.shape != (len(evaluations), *shape):
        raise ValueError(
            f"`{name}` must have the shape (evaluations, *{shape}), and at least one "
            f"evaluation. Received: {name} of shape {frames.shape}, "
            f"{len(evaluations)} evaluations."
        )
