"""Plot of exact predictions over the budget, by size of the problems."""

from typing import NamedTuple

from matplotlib.figure import Figure

from ...files.atomic_file import replacing


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
