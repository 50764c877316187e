"""Figures of an audit."""

import numpy as np
from matplotlib.figure import Figure

# Lower bound of plotted residuals.
_ROUNDING = 1e-8


def draw_curves(groups):
    """Plots residuals and exact predictions over evaluations.

    A dashed line in the color of the curves marks the floor of a group.

    Args:
        groups: List of `FoundOfGroup`.
    """
    figure, (above, below) = _figure(2, height=6.5, sharex=True)
    for group in groups:
        (line,) = above.plot(
            group.budgets,
            [100 * share for share in group.exact],
            marker="o",
            label=group.label,
        )
        color = line.get_color()
        residuals = np.maximum(np.array(group.residuals, "float64"), _ROUNDING)
        below.plot(range(1, 1 + len(residuals)), residuals, color=color)
        if group.floor:
            for axes in (above, below):
                axes.axvline(group.floor, color=color, ls="--", lw=1)
    if any(group.floor for group in groups):
        above.plot([], [], color="grey", ls="--", lw=1, label="floor: distance / reach")
    above.set(ylabel="exact answers [%]", ylim=(-3, 103))
    above.legend()
    below.set(xlabel="function evaluations (NFE)", ylabel="residual, median")
    below.set_xscale("log")
    if np.isfinite(below.dataLim.ymax):  # A logarithmic axis without values raises.
        below.set_yscale("log")
    return figure


def draw_difficulty(groups, correlation):
    """Plots the evaluations until the tolerance is met over the difficulty.

    Args:
        groups: List of `FoundOfGroup`. At least one must have a difficulty.
        correlation: Float or `None`. Correlation over all groups.
    """
    figure, (axes,) = _figure(1)
    for group in groups:
        if group.difficulty is not None:
            axes.plot(
                group.difficulty, group.evaluations, "o", alpha=0.4, label=group.label
            )
    text = "not defined" if correlation is None else f"{correlation:.2f}"
    axes.set(
        xlabel="difficulty",
        ylabel="NFE to the tolerance",
        title=f"rank correlation: {text}",
    )
    axes.legend()
    return figure


def draw_starts(groups, thresholds):
    """Plots alignment and equal predictions for each initial state.

    Args:
        groups: List of `FoundOfGroup`.
        thresholds: Dict of `alignment` and `agreement`, which are drawn as lines.
    """
    figure, both = _figure(2, height=6.5, sharex=True)
    starts = [found.start for found in groups[0].starts]
    for axes, (name, threshold) in zip(both, thresholds.items(), strict=True):
        values = [
            [np.nan if (value := getattr(found, name)) is None else value]
            for group in groups
            for found in group.starts
        ]
        _bars(axes, groups, np.reshape(values, (len(groups), -1)))
        axes.axhline(threshold, color="grey", ls=":", label=f"at least {threshold:g}")
    both[0].set(ylabel="alignment")
    both[1].set(ylabel="same answer, share", xlabel="start")
    both[1].set_xticks(range(len(starts)), starts)
    both[0].legend()
    return figure


def draw_lost(groups):
    """Plots the exact predictions at the best budget and at the largest budget."""
    figure, (axes,) = _figure(1)
    best = [max(group.exact) for group in groups]
    last = [group.exact[-1] for group in groups]
    for offset, shares, label in ((-0.2, best, "best"), (0.2, last, "largest")):
        places = np.arange(len(groups)) + offset
        axes.bar(places, 100 * np.array(shares), 0.4, label=f"{label} budget")
    axes.set_xticks(range(len(groups)), [group.label for group in groups])
    axes.set(ylabel="exact answers [%]", ylim=(0, 103))
    axes.legend()
    return figure


def _bars(axes, groups, values):
    """Draws bars of `values` `(groups, starts)`, one cluster per initial state."""
    width = 0.8 / len(groups)
    for index, (group, row) in enumerate(zip(groups, values, strict=True)):
        places = np.arange(len(row)) + width * (index - (len(groups) - 1) / 2)
        axes.bar(places, row, width, label=group.label)


def _figure(rows, height=4, **kwargs):
    figure = Figure(figsize=(6, height), layout="constrained")
    axes = figure.subplots(rows, squeeze=False, **kwargs)[:, 0]
    for one in axes:
        one.grid(alpha=0.3)
    return figure, axes
