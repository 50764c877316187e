"""Figures of trained variants."""

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from ..config.reading import by_variant  # noqa: E402
from ..files.atomic_file import replacing  # noqa: E402
from .summary import at_budgets  # noqa: E402


def plot_scores(path, evaluations, score):
    """Plots a score over the budget of evaluations, with one line per variant.

    For several seeds, plots the mean with a band of one standard deviation.

    Args:
        path: Path of the PNG file.
        evaluations: Dict from runs to lists of dicts with `budget` and the score.
        score: The `Score`.
    """
    figure, axes = _figure("function evaluations (NFE)", score.label)
    for name, runs in by_variant(evaluations).items():
        values = at_budgets(runs, score.name)
        mean = np.array([score.scale * np.mean(one) for one in values.values()])
        (line,) = axes.plot(list(values), mean, marker="o", label=name)
        if all(len(one) > 1 for one in values.values()):
            deviation = [score.scale * np.std(one, ddof=1) for one in values.values()]
            _band(axes, list(values), mean - deviation, mean + deviation, line)
    _save(figure, axes, path)


def plot_residuals(path, diagnoses):
    """Plots the residual over evaluations: median and quartiles over samples.

    For several seeds, plots the geometric means of the medians and quartiles.

    Args:
        path: Path of the PNG file.
        diagnoses: Dict from runs to results of `diagnose`.
    """
    figure, axes = _figure("function evaluations (NFE)", "smallest residual so far")
    for name, runs in by_variant(diagnoses).items():
        budgets = [row["budget"] for row in runs[0]["residual_quantiles"]]
        quartiles = np.array(
            [
                [[row[q] for q in ("q25", "q50", "q75")] for row in rows]
                for rows in (run["residual_quantiles"] for run in runs)
            ]
        )
        with np.errstate(divide="ignore"):  # A residual can be 0.
            low, median, high = np.exp(np.log(quartiles).mean(axis=0)).T
        (line,) = axes.semilogy(budgets, median, label=name)
        _band(axes, budgets, low, high, line)
    _save(figure, axes, path)


def residual_image(quartiles):
    """Plots the residual over evaluations as an image, uint8 `(height, width, 4)`.

    Args:
        quartiles: Array `(max_iter, 3)`. Quartiles over samples of the smallest
            residual so far.
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


def _band(axes, budgets, low, high, line):
    axes.fill_between(budgets, low, high, color=line.get_color(), alpha=0.25)


def _save(figure, axes, path):
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
    pyplot.close(figure)
