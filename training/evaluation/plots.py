"""Figures of trained variants."""

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from ..files.atomic_file import replacing  # noqa: E402


def plot_scores(path, evaluations, score):
    """Draws a score against the budget of evaluations.

    Args:
        path: the PNG file.
        evaluations: name of a variant -> list of dicts of `budget` and the score.
        score: the `Score`.
    """
    figure, axes = _figure("function evaluations (NFE)", score.label)
    for name, rows in evaluations.items():
        budgets = [row["budget"] for row in rows]
        values = [score.scale * row[score.name] for row in rows]
        axes.plot(budgets, values, marker="o", label=name)
    _save(figure, axes, path)


def plot_residuals(path, diagnoses):
    """Draws the residual against evaluations: median and quartiles over samples.

    Args:
        path: the PNG file.
        diagnoses: name of a variant -> what `diagnose` returns.
    """
    figure, axes = _figure("function evaluations (NFE)", "smallest residual so far")
    for name, diagnosis in diagnoses.items():
        rows = diagnosis["residual_quantiles"]
        budgets = [row["budget"] for row in rows]
        (line,) = axes.semilogy(budgets, [row["q50"] for row in rows], label=name)
        axes.fill_between(
            budgets,
            [row["q25"] for row in rows],
            [row["q75"] for row in rows],
            color=line.get_color(),
            alpha=0.25,
        )
    _save(figure, axes, path)


def residual_image(quartiles):
    """Draws the residual against evaluations as an image, uint8 `(height, width, 4)`.

    Args:
        quartiles: array `(max_iter, 3)`, of the smallest residual so far over samples.
    """
    figure, axes = _figure("function evaluations (NFE)", "smallest residual so far")
    low, median, high = quartiles.T
    counts = range(1, len(quartiles) + 1)
    axes.semilogy(counts, median)
    axes.fill_between(counts, low, high, alpha=0.25)
    figure.canvas.draw()
    image = np.array(figure.canvas.buffer_rgba())
    pyplot.close(figure)
    return image


def _figure(x_label, y_label):
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure, axes, path):
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
    pyplot.close(figure)
