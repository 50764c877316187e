"""Exact answers against the budget, size by size."""

from typing import NamedTuple

from matplotlib.figure import Figure

from ...files.atomic_file import replacing


class AccuracyCurve(NamedTuple):
    """How many problems of one size are solved at budgets.

    Attributes:
        label: str. The size.
        budgets: sequence of ints, evaluations.
        accuracies: sequence of floats from 0 to 1, the share of exact answers at each.
        floor: number. The least evaluations in which information travels as far as it
            has to, by `least_evaluations`; `None` for no line.
    """

    label: str
    budgets: list
    accuracies: list
    floor: float | None


def plot_accuracy(path, curves):
    """Draws exact answers against the budget; the file is replaced atomically.

    The floor of a size is a dashed line of the color of its curve.

    Args:
        path: the PNG or SVG file, in an existing folder.
        curves: list of `AccuracyCurve`, a line each.
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
