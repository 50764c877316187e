"""Writes animated GIFs."""

from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure

from ...files.atomic_file import replacing

_FRAMES_PER_SECOND = 8
# The last frame stays as long as so many others.
_LAST = 16
_DPI = 80


def write_gif(path, figure, draw, num_frames):
    """Writes a figure frame by frame; the file is replaced atomically.

    Args:
        path: the GIF file, in an existing folder.
        figure: matplotlib's `Figure`.
        draw: function of the index of a frame that draws it into the figure.
        num_frames: int >= 1.
    """
    writer = PillowWriter(fps=_FRAMES_PER_SECOND)
    with replacing(path) as temporary, writer.saving(figure, temporary, _DPI):
        for frame in range(num_frames):
            draw(frame)
            writer.grab_frame()
        for _ in range(_LAST - 1):
            writer.grab_frame()


def square():
    """Returns a figure for something square below a title, and its axes."""
    figure = Figure(figsize=(4, 4.3))
    # A layout that matplotlib finds moves from frame to frame.
    return figure, figure.add_axes((0.02, 0.02, 0.96, 0.96 * 4 / 4.3))


def progress(evaluation, num_wrong):
    """Returns the title of a frame."""
    return f"NFE {evaluation}: {f'{num_wrong} wrong' if num_wrong else 'solved'}"


def check_frames(name, frames, evaluations, shape):
    """Raises `ValueError` unless there is one array of a shape for each evaluation.

    Args:
        name: str. The name of the argument `frames`.
        frames: array of the frames.
        evaluations: sequence, of which evaluation each frame is.
        shape: tuple, what each must have.
    """
    if not len(evaluations) or frames.shape != (len(evaluations), *shape):
        raise ValueError(
            f"`{name}` must have the shape (evaluations, *{shape}), and at least one "
            f"evaluation. Received: {name} of shape {frames.shape}, "
            f"{len(evaluations)} evaluations."
        )
