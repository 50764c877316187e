"""The table, the numbers and the figure of an experiment."""

from collections.abc import Callable
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure as Drawing

from ..files import records
from ..files.atomic_file import replacing, write_text

DEVIATION = " std"
# A column of a paper, in inches.
_WIDTH = 3.3
_STYLE = {
    "font.size": 7,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.markersize": 4,
    "svg.hashsalt": "deq_keras",
}


class Results(NamedTuple):
    """The measurements of an experiment.

    Attributes:
        rows: List of dicts with the same keys, the columns of the table. A column
            `NAME std` is the standard deviation over seeds of the column `NAME`.
        note: String. Explains the columns and the sizes.
        draw: Function of the rows. Returns a `matplotlib` figure.
        further: Dict of names to `Figure`s.
    """

    rows: list
    note: str
    draw: Callable
    further: dict = {}


class Figure(NamedTuple):
    """A further figure of an experiment.

    Attributes:
        rows: List of dicts with the same keys, the numbers of the figure.
        draw: Function of the rows. Returns a `matplotlib` figure.
    """

    rows: list
    draw: Callable


def write(folder, title, results, facts):
    """Writes `table.md`, `numbers.csv`, `figure.png` and `figure.svg`.

    The files of a further figure have its name instead of `numbers` and `figure`.

    Args:
        folder: `pathlib.Path` of an existing folder.
        title: String. Heading of the table.
        results: `Results`.
        facts: Dict of strings, listed above the table: the command, the machine.

    Returns:
        String, the table.
    """
    lines = "\n".join(f"* **{name}**: {text}" for name, text in facts.items())
    table = markdown(results.rows)
    text = f"# {title}\n\n{lines}\n\n{results.note}\n\n{table}\n"
    records.write_csv(folder / "numbers.csv", results.rows)
    _write_figure(folder, "figure", results.draw, results.rows)
    for name, figure in results.further.items():
        records.write_csv(folder / f"{name}.csv", figure.rows)
        _write_figure(folder, name, figure.draw, figure.rows)
    # Written last: this file marks a finished experiment.
    write_text(folder / "table.md", text)
    return table


def _write_figure(folder, name, draw, rows):
    with matplotlib.rc_context(_STYLE):
        figure = draw(rows)
        for suffix in ("png", "svg"):
            with replacing(folder / f"{name}.{suffix}") as temporary:
                figure.savefig(temporary, dpi=300)


def markdown(rows):
    """Returns rows as a table in Markdown; a deviation joins its mean."""
    columns = [name for name in rows[0] if not name.endswith(DEVIATION)]
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row, name) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row, name):
    deviation = row.get(name + DEVIATION)
    text = _text(row[name])
    return text if deviation is None else f"{text} ± {_text(deviation)}"


def _text(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def curves(panels):
    """Returns a figure of panels in a column. A line has one color in all of them.

    Args:
        panels: List of `Panel`.
    """
    figure = Drawing((_WIDTH, 0.4 + 1.7 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    for axes, panel in zip(all_axes, panels, strict=True):
        for name, (x, mean, deviation) in panel.lines.items():
            index = names.index(name)
            color, style = f"C{index % 10}", "-" if index < 10 else "--"
            axes.plot(x, mean, style, marker=".", color=color, label=name)
            if deviation is not None:
                low, high = _band(mean, deviation, panel.is_log)
                axes.fill_between(x, low, high, color=color, alpha=0.2)
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        if all(isinstance(x, int) for xs, *_ in panel.lines.values() for x in xs):
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        if panel.is_log:
            axes.set_yscale("log", nonpositive="clip")
    all_axes[0].legend(fontsize="x-small", ncols=2)
    return figure


def _band(mean, deviation, is_log):
    """Returns the ends of a band, as far below the mean as above it on its axis."""
    mean, deviation = np.asarray(mean), np.asarray(deviation)
    high = mean + deviation
    if not is_log:
        return mean - deviation, high
    with np.errstate(invalid="ignore"):  # A residual can be 0.
        return mean**2 / high, high


def scatter(x_label, y_label, points):
    """Returns a figure of points, with a logarithmic y axis.

    Args:
        x_label: String, with a unit.
        y_label: String, with a unit.
        points: Dict of names to lists of pairs (x, y).
    """
    figure = Drawing((_WIDTH, 2.5), layout="constrained")
    axes = figure.subplots()
    for name, pairs in points.items():
        axes.scatter(*zip(*pairs, strict=True), s=4, alpha=0.5, label=name)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_yscale("log", nonpositive="mask")
    axes.legend(fontsize="x-small")
    return figure


class Panel(NamedTuple):
    """A panel of `curves`.

    Attributes:
        x_label: String, with a unit.
        y_label: String, with a unit.
        lines: Dict of names to tuples of x, means, and deviations or `None`.
        is_log: Boolean. Whether the y axis is logarithmic. A band of a mean less its
            deviation would often end below zero there, so it ends at the same ratio
            below the mean as above.
    """

    x_label: str
    y_label: str
    lines: dict
    is_log: bool = False
