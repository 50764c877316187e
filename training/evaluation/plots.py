"""Figures of trained variants."""

import functools
import itertools
import math

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.animation import PillowWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import registry
from ..config.reading import by_variant
from ..files.atomic_file import replacing
from . import report
from .summary import at_budgets

# Panels of a history: label, columns with solid and dashed lines, and whether the axis
# is logarithmic. `{}` is the name of the equilibrium layer.
_PANELS = (
    ("loss (dashed: validation)", ("loss", "val_loss"), False),
    ("residual (dashed: validation)", ("{}_residual", "val_{}_residual"), True),
    ("NFE (dashed: validation)", ("{}_evaluations", "val_{}_evaluations"), False),
    ("adjoint residual", ("{}_adjoint_residual",), True),
    ("adjoint NFE", ("{}_adjoint_evaluations",), False),
    ("penalty (dashed: norm of J)", ("{}_penalty", "{}_jacobian_norm"), False),
    ("spectral radius", ("{}_spectral_radius",), False),
)


def draw_run(directory, name, suffix="png"):
    """Draws the history and the residuals of a run, as far as it has been measured.

    Args:
        directory: The `WorkDirectory`.
        name: String. Name of the run.
        suffix: String. Format of the figures: `"png"`, `"svg"` or `"pdf"`.
    """
    folder = directory.folder(name)
    histories = {name: report.histories(directory)[name]}
    _, diagnoses = report.measurements(directory)
    if histories[name]:
        plot_history(folder / f"history.{suffix}", histories)
    if name in diagnoses:
        plot_residuals(folder / f"residuals.{suffix}", {name: diagnoses[name]})


def plot_images(path, images):
    """Plots gray images side by side. Replaces the file atomically.

    Args:
        path: Path of the figure, in an existing folder.
        images: Dict from titles to arrays `(height, width)` of values in [0, 1].
    """
    rows = math.ceil(len(images) / 4)
    columns = math.ceil(len(images) / rows)
    figure = Figure(figsize=(3 * columns, 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, (title, image) in zip(panels, images.items(), strict=False):
        panel.imshow(image, cmap="gray", vmin=0, vmax=1)
        panel.set_title(title)
    _save(figure, path)


def animate_images(path, images):
    """Writes a GIF that shows images one after the other, the last one for longer.

    Replaces the file atomically.

    Args:
        path: Path of the GIF file, in an existing folder.
        images: See `plot_images`; all of one size.
    """
    figure = Figure(figsize=(4, 4.6))
    # An automatic layout would change from frame to frame.
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.96 * 4 / 4.6))
    writer = PillowWriter(fps=1)
    with replacing(path) as temporary, writer.saving(figure, temporary, dpi=100):
        for title, image in images.items():
            axes.clear()
            axes.axis("off")
            axes.imshow(image, cmap="gray", vmin=0, vmax=1)
            axes.set_title(title)
            writer.grab_frame()
        writer.grab_frame()


def draw_comparison(directory, suffix="png"):
    """Draws the figures that compare the runs of a `WorkDirectory`, for each task."""
    score = registry.find(directory.config.experiment).score
    histories = {
        name: rows for name, rows in report.histories(directory).items() if rows
    }
    evaluations, diagnoses = report.measurements(directory)
    for task in directory.config.tasks or [""]:
        ending = f"-{task}.{suffix}" if task else f".{suffix}"
        for name, draw, values in (
            ("history", plot_history, histories),
            (score.name, functools.partial(plot_scores, score=score), evaluations),
            ("residuals", plot_residuals, diagnoses),
            ("samples", plot_samples, diagnoses),
        ):
            start = f"{task}." if task else ""
            of_task = {
                run.removeprefix(start): value
                for run, value in values.items()
                if run.startswith(start)
            }
            if of_task:
                draw(directory.path / f"{name}{ending}", of_task)


def plot_scores(path, evaluations, score, at="budget"):
    """Plots a score over the budget of evaluations, with one line per variant.

    For several seeds, plots the mean with a band of one standard deviation.

    Args:
        path: Path of the PNG, SVG or PDF file.
        evaluations: Dict from runs to lists of dicts with `budget` and the score.
        score: The `Score`.
        at: String. `"budget"` or `"tolerance"`, the key of what varies. Defaults to
            `"budget"`.
    """
    labels = {"budget": "function evaluations (NFE)", "tolerance": "tolerance"}
    figure, axes = _figure(labels[at], score.label)
    if at == "tolerance":
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(_integers())
    for name, runs in by_variant(evaluations).items():
        values = at_budgets(runs, score.name, at)
        mean = np.array([score.scale * np.mean(one) for one in values.values()])
        (line,) = axes.plot(list(values), mean, marker="o", label=name)
        if all(len(one) > 1 for one in values.values()):
            deviation = [score.scale * np.std(one, ddof=1) for one in values.values()]
            _band(axes, list(values), mean - deviation, mean + deviation, line)
    _legend(figure, axes)
    _save(figure, path)


def plot_tuning(path, tuning, candidates):
    """Plots the bound of changed predictions over the cost, with a line per candidate.

    Args:
        path: Path of the PNG, SVG or PDF file.
        tuning: The `deq_keras.tuning.Tuning`.
        candidates: Dict from labels to lists of its `settings`.
    """
    label = f"changed predictions, {100 * tuning.promise.confidence:g} % bound [%]"
    figure, axes = _figure("mean function evaluations (NFE)", label)
    axes.xaxis.set_major_locator(_integers())
    for name, settings in candidates.items():
        costs = [one.outcome.evaluations for one in settings]
        bounds = [100 * one.outcome.bound for one in settings]
        axes.plot(costs, bounds, marker=".", label=name)
    axes.axhline(100 * tuning.promise.changed, color="gray", ls=":", label="promise")
    for outcome, marker, name in (
        (tuning.confirmation, "*", "chosen, second half"),
        (tuning.previous, "o", "previous, second half"),
    ):
        point = (outcome.evaluations, 100 * outcome.bound)
        axes.plot(*point, marker, color="black", label=name, mfc="none")
    axes.set_yscale("log")
    _legend(figure, axes)
    _save(figure, path)


def plot_residuals(path, diagnoses):
    """Plots the residual over evaluations: median and quartiles over samples.

    For several seeds, plots the geometric mean of their medians with a band of one
    geometric standard deviation.

    Args:
        path: Path of the PNG, SVG or PDF file.
        diagnoses: Dict from runs to results of `diagnose`.
    """
    figure, axes = _figure("function evaluations (NFE)", "smallest residual so far")
    axes.xaxis.set_major_locator(_integers())
    for name, runs in by_variant(diagnoses).items():
        budgets = [row["budget"] for row in runs[0]["residual_quantiles"]]
        quartiles = np.array(
            [
                [[row[q] for q in ("q25", "q50", "q75")] for row in rows]
                for rows in (run["residual_quantiles"] for run in runs)
            ]
        )
        low, median, high = quartiles[0].T
        if len(runs) > 1:
            low, median, high = _geometric_band(quartiles[:, :, 1])
        (line,) = axes.plot(budgets, median, label=name)
        _band(axes, budgets, low, high, line)
    axes.set_yscale("log", nonpositive="mask")
    _legend(figure, axes)
    _save(figure, path)


def plot_samples(path, diagnoses):
    """Plots the residual of samples over the norm of their Jacobian.

    Args:
        path: Path of the PNG, SVG or PDF file.
        diagnoses: Dict from runs to results of `diagnose`.
    """
    figure, axes = _figure("norm of J, squared, per entry of the state", "residual")
    axes.set_yscale("log", nonpositive="mask")
    for name, runs in by_variant(diagnoses).items():
        rows = [row for run in runs for row in run["samples"]]
        points = np.array([[row["jacobian_norm"], row["residual"]] for row in rows])
        axes.plot(*points.T, ".", alpha=0.6, label=name)
    _legend(figure, axes)
    _save(figure, path)


def _geometric_band(values):
    """Returns the geometric mean of runs, `(run, point)`, and its band.

    Returns:
        Tuple of arrays `(point,)`: the mean, divided by the geometric standard
        deviation; the mean; the mean, multiplied by it.
    """
    # A residual can be 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
        mean, deviation = logs.mean(axis=0), logs.std(axis=0, ddof=1)
        return np.exp(mean - deviation), np.exp(mean), np.exp(mean + deviation)


def plot_history(path, histories):
    """Plots the loss, the solves and the Jacobian over the epochs of training.

    Omits panels without values. A dotted line marks the start of a phase.

    Args:
        path: Path of the PNG, SVG or PDF file.
        histories: Dict from runs to the rows of their history, which must not be empty.
            All runs of a variant have one color.
    """
    columns = dict.fromkeys(name for rows in histories.values() for name in rows[0])
    panels = _panels(histories, columns)
    figure = Figure((6, 1 + 1.8 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (label, names, is_log) in zip(all_axes, panels, strict=True):
        axes.set_title(label, loc="left", fontsize="medium")
        axes.grid(alpha=0.3)
        if is_log:
            axes.set_yscale("log", nonpositive="mask")
        if label.startswith("NFE"):
            axes.yaxis.set_major_locator(_integers())
        for index, (variant, runs) in enumerate(by_variant(histories).items()):
            _draw_variant(axes, variant, runs, names, f"C{index % 10}")
        phases = [row["phase"] for row in next(iter(histories.values()))]
        for epoch, (one, other) in enumerate(itertools.pairwise(phases), start=1):
            if one != other:
                axes.axvline(epoch + 0.5, color="grey", ls=":", lw=1)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(_integers())
    _legend(figure, all_axes[0])
    _save(figure, path)


def _panels(histories, columns):
    """Returns the panels of which a run has values, with the columns that exist."""
    suffix = "_residual"
    layers = [name.removesuffix(suffix) for name in columns if name.endswith(suffix)]
    # The shortest name: others begin with `val_` or end in `_adjoint`.
    layer = min(layers, key=len, default="")
    panels = []
    for label, names, is_log in _PANELS:
        names = [name.format(layer) for name in names]
        runs = histories.values()
        values = [_values(rows, name) for rows in runs for name in names]
        if any(np.isfinite(one).any() for one in values):
            # Some cells converge in one evaluation: their residuals are 0.
            is_log = is_log and any((one > 0).any() for one in values)
            panels.append((label, names, is_log))
    return panels


def _draw_variant(axes, variant, runs, names, color):
    for rows in runs:
        for name, style in zip(names, ("-", "--"), strict=False):
            label = variant if rows is runs[0] and name is names[0] else None
            epochs, values = range(1, len(rows) + 1), _values(rows, name)
            axes.plot(epochs, values, style, marker=".", color=color, label=label)


def _values(rows, name):
    """Returns a column of a history, with NaN for missing values."""
    values = [row.get(name) for row in rows]
    return np.array(
        [math.nan if value in (None, "") else value for value in values], float
    )


def _integers():
    """Returns a locator of ticks at integers, also for a range below one."""
    return ticker.MaxNLocator(integer=True, min_n_ticks=1)


def residual_image(quartiles):
    """Plots the residual over evaluations as an image, uint8 `(height, width, 4)`.

    The text is large enough for the small cards of TensorBoard.

    Args:
        quartiles: Array `(max_iter, 3)`. Quartiles over samples of the smallest
            residual so far.
    """
    with matplotlib.rc_context({"font.size": 15, "lines.linewidth": 2.5}):
        figure, axes = _figure("evaluations of f", "residual")
        low, median, high = quartiles.T
        counts = range(1, len(quartiles) + 1)
        axes.set_yscale("log", nonpositive="mask")
        axes.plot(counts, median, label="median")
        axes.fill_between(counts, low, high, alpha=0.25, label="quartiles")
        axes.xaxis.set_major_locator(_integers())
        axes.legend()
        _check_scales(figure)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return np.array(canvas.buffer_rgba())


def _figure(x_label, y_label):
    figure = Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _legend(figure, axes):
    """Explains the lines of `axes` below the figure, where no line runs."""
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize="small",
    )


def _band(axes, budgets, low, high, line):
    axes.fill_between(budgets, low, high, color=line.get_color(), alpha=0.25)


def _check_scales(figure):
    """Draws axes whose values are all zero on a linear scale.

    Some cells converge to a residual of zero.
    """
    for axes in figure.axes:
        if axes.get_yscale() == "log" and np.isinf(axes.dataLim.minposy):
            axes.set_yscale("linear")


def _save(figure, path):
    _check_scales(figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
