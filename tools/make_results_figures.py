"""Draws the figures of the pages in docs/results from the tables of these pages.

    python tools/make_results_figures.py

They go to docs/images. Run it after a change of a table.
"""

import os
import re
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np  # noqa: E402
from matplotlib import pyplot, ticker  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"

# One color per kind of model on all pages; the figures of the main job have the first
# two as well.
PLAIN, CONTRACTION, EXPLICIT, FROBENIUS = "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd"
TWIN_OF_SIX = "#98df8a"
PAPER = "#7f7f7f"

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def table(page, first, number=0):
    """Returns the rows of a table of a page as lists of strings, without the header.

    Args:
        page: String. Name of the page.
        first: String. Start of the header line.
        number: Integer >= 0. Number of the table among those with the same start.
    """
    text = (DOCS / "results" / f"{page}.md").read_text(encoding="utf-8")
    tables = re.findall(rf"^{re.escape(first)}.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M)
    lines = tables[number].splitlines()
    return [[cell.strip(" *`") for cell in line[1:-1].split("|")] for line in lines]


def header(page, first, number=0):
    """Returns the numbers in the header of a table, one per column with a number."""
    text = (DOCS / "results" / f"{page}.md").read_text(encoding="utf-8")
    lines = re.findall(rf"^{re.escape(first)}.*\n(?=\|-)", text, re.M)
    cells = lines[number].strip()[1:-1].split("|")[1:]
    return [value(cell) for cell in cells]


def values(cell):
    """Returns the numbers of a cell: a mean, its deviation, and others."""
    return [float(one.replace(",", "")) for one in _NUMBER.findall(cell)] or [np.nan]


def value(cell):
    """Returns the first number of a cell, or NaN."""
    return values(cell)[0]


def label_axes(x_label, y_label):
    """Returns a figure and its axes with labels."""
    figure, axes = pyplot.subplots()
    axes.set(xlabel=x_label, ylabel=y_label)
    return figure, axes


def copy_memory():
    rows = table("explicit", "| network | weights | epochs | training")
    figure, axes = label_axes("test loss [nats per position]", "")
    names = [row[0].partition(",")[0] for row in rows]
    losses, published = ([value(row[column]) for row in rows] for column in (4, 5))
    axes.plot(losses[:1], names[:1], "o", color=PLAIN, label="DEQ")
    axes.plot(losses[1:], names[1:], "o", color=EXPLICIT, label="explicit")
    axes.plot(published, names, "D", color=PAPER, mfc="none", label="Bai et al. (2019)")
    axes.axvline(0.0495, color="black", ls=":", label="blank")
    axes.set(xscale="log", xlim=(1e-6, 0.2), ylim=(3.5, -0.5))
    axes.legend(loc="lower left", fontsize="small")
    return figure


def costs():
    rows = table("costs", "| network | weights")
    names, colors, model, is_plain = [], [], "", True
    for row in rows:
        model, is_plain = (row[0], True) if row[1] else (model, is_plain and not row[0])
        penalty = "" if is_plain else " + penalty"
        name = model.removeprefix("MDEQ ")
        names.append(f"{name}{penalty}, {row[2]}" if row[2] else name)
        colors.append((PLAIN if is_plain else CONTRACTION) if row[2] else EXPLICIT)
    panels = {"training step [s]": 3, "memory [MiB]": 5}
    return _bars(rows, names, colors, panels)


def imaging():
    tasks = "deblurring", "doubling the size", "inpainting", "tomography"
    figure, panels = pyplot.subplots(2, 2, figsize=(5.2, 4.8))
    for axes, task in zip(panels.flat, tasks, strict=True):
        first = f"| {task}, PSNR [dB] at NFE"
        counts = header("imaging", first)
        for row, color in zip(
            table("imaging", first),
            (PLAIN, EXPLICIT, TWIN_OF_SIX, PAPER),
            strict=False,  # Tikhonov's method is far below.
        ):
            axes.plot(
                counts, list(map(value, row[1:])), "o-", color=color, label=row[0]
            )
        axes.set(xscale="log", title=task)
        axes.set_xticks(counts, [f"{count:g}" for count in counts], fontsize="small")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    figure.supxlabel("function evaluations (NFE)", fontsize="medium")
    for axes in panels[:, 0]:
        axes.set_ylabel("test PSNR [dB]")
    panels[0, 0].legend(fontsize="x-small")
    return figure


def world():
    subjects = {
        "reaction and diffusion": "| reaction and diffusion |",
        "classes on a graph": "| communities |",
        "budget": "| budget |",
        "transport": "| transport |",
        "traffic": "| traffic |",
    }
    figure, panels = pyplot.subplots(3, 2, figsize=(5.2, 6.4), sharex=True)
    for axes, (title, first) in zip(panels.flat, subjects.items(), strict=False):
        sets, *networks = zip(*table("world", first), strict=True)
        places = np.arange(len(sets))
        for index, (errors, label, color) in enumerate(
            zip(
                networks,
                ("equilibrium", "unrolled", "plain network"),
                (PLAIN, TWIN_OF_SIX, PAPER),
                strict=True,
            )
        ):
            heights = places + 0.15 * (index - 1)
            axes.plot([*map(value, errors)], heights, "o", color=color, label=label)
        axes.set_yticks(places, [textwrap.fill(name, 11) for name in sets])
        axes.tick_params("y", labelsize="small")
        axes.set(xscale="log", title=title, ylim=(len(sets) - 0.6, -0.4))
        axes.set_xticks([0.001, 0.01, 0.1, 1])
        axes.xaxis.set_tick_params(labelbottom=True)
    panels[2, 1].axis("off")
    panels[2, 1].legend(*panels[0, 0].get_legend_handles_labels(), loc="center")
    figure.supxlabel("test error", fontsize="medium")
    return figure


def _bars(rows, names, colors, panels):
    """Draws a panel of horizontal bars for each of some columns."""
    size = (4.8, 0.8 + 0.27 * len(rows))
    figure, all_axes = pyplot.subplots(1, len(panels), figsize=size, sharey=True)
    for axes, (label, column) in zip(all_axes, panels.items(), strict=True):
        heights = [value(row[column]) for row in rows]
        axes.barh(range(len(rows)), heights, color=colors)
        axes.set_xlabel(label, fontsize="small")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(2))
    all_axes[0].set_yticks(range(len(rows)), names)
    all_axes[0].invert_yaxis()
    return figure


def gpu():
    f_times, *rows = table("costs", "| quantity | transformer layer, 1024 wide")[:4]
    figure, all_axes = pyplot.subplots(1, 2, figsize=(4.8, 2.3), sharey=True)
    workloads = {"transformer layer": 1, "conv block": 3}
    for axes, (workload, first) in zip(all_axes, workloads.items(), strict=True):
        for xla, (label, color) in enumerate(
            {"solver": PLAIN, "solver, XLA": FROBENIUS}.items()
        ):
            column = first + xla
            unavoidable = 12 * value(f_times[column])
            times = [unavoidable * value(row[column]) for row in rows]
            places = [index + 0.4 * xla - 0.2 for index in range(len(rows))]
            axes.barh(places, times, height=0.36, color=color, label=label)
            name = None if xla else "12 evaluations of f"
            axes.barh(places, unavoidable, height=0.36, color=PAPER, label=name)
        axes.set_title(workload, fontsize="small")
        axes.set_xlabel("solve [ms]", fontsize="small")
    all_axes[0].set_yticks(range(len(rows)), [row[0] for row in rows])
    all_axes[0].invert_yaxis()
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize="x-small",
    )
    return figure


def defaults():
    rows = table("explicit", "| task | DEQ [%]")
    models = {"DEQ": (PLAIN, 1, 2), "twin": (EXPLICIT, 3, 4)}
    return _keep(rows, [row[0] for row in rows], models)


def transport():
    rows = table("explicit", "| task, cell")
    scores, later = rows[::2], rows[1::2]
    joined = [row + below for row, below in zip(scores, later, strict=True)]
    names = [re.split(r"[,;]", row[0].replace('"', ""))[0] for row in scores]
    width = len(rows[0])
    models = {
        "DEQ": (PLAIN, 2, width + 2),
        "twin of 6": (TWIN_OF_SIX, 4, width + 4),
        "twin of 12": (EXPLICIT, 5, width + 5),
    }
    return _keep(joined, names, models)


def _keep(rows, names, models):
    """Draws scores at the trained budget, and what is left of them at 60."""
    figure, axes = pyplot.subplots(figsize=(4.2, 1 + 0.45 * len(rows)))
    for index, (name, (color, trained, longer)) in enumerate(models.items()):
        heights = np.arange(len(rows)) + 0.25 * (index - (len(models) - 1) / 2)
        first, last = (
            np.array([value(row[c]) for row in rows]) for c in (trained, longer)
        )
        axes.hlines(heights, first, last, color=color)
        axes.plot(first, heights, "o", color=color, label=name)
        axes.plot(last, heights, "o", color=color, markerfacecolor="white", ms=4)
    axes.plot([], [], "o", color="black", markerfacecolor="white", ms=4, label="at 60")
    labels = [textwrap.fill(name, 18) for name in names]
    axes.set_yticks(range(len(rows)), labels, fontsize="small")
    axes.set_xlabel("score [%] at the trained budget, at 60")
    axes.invert_yaxis()
    axes.legend(fontsize="small")
    return figure


def gradients():
    rows = table("gradients", "| gradient, parity")
    names = [re.sub('[`"†]|=True|solver=', "", row[0]).strip() for row in rows]
    panels = {"accuracy [%]": 1, "training [s]": 3, "memory [MiB]": 4}
    return _bars(rows, names, [PLAIN] * len(rows), panels)


def language():
    rows = table("explicit", "| model | NFE 2")
    counts = header("explicit", "| model | NFE 2")
    figure, axes = label_axes(
        "function evaluations (NFE)", "validation loss\n[nats per character]"
    )
    colors = {"plain DEQ": PLAIN, "contraction penalty": CONTRACTION}
    colors["Frobenius penalty"] = FROBENIUS
    for row in rows:
        losses = [value(cell) for cell in row[1:]]
        if row[0] in colors:
            axes.plot(counts, losses, "o-", color=colors[row[0]], label=row[0])
        elif "explicit" in row[0]:
            label = row[0].replace("explicit layers", "layers")
            marker = "s" if "untied" in row[0] else "^"
            axes.plot(counts, losses, marker, color=EXPLICIT, label=label)
    axes.set(ylim=(1.7, 2.6))
    axes.legend(fontsize="small")
    return figure


def papers():
    # The control would take most of the width.
    rows = [row for row in table("papers", "| group") if row[0] != "control"]
    figure, axes = pyplot.subplots(figsize=(4.2, 0.8 + 0.19 * len(rows)))
    names, headings, group = [], [], None
    for row in rows:
        if row[0] != group:
            group = row[0]
            headings.append(len(names))
            names.append(group)
        color = FROBENIUS if "JR" in row[1] else PLAIN if "DEQ" in row[1] else EXPLICIT
        axes.barh(len(names), 100 * value(row[4]), color=color, height=0.7)
        published = 100 * value(row[6])
        axes.plot(published, len(names), "D", color=PAPER, mfc="white", ms=4)
        names.append(row[1])
    axes.plot([], [], "D", color=PAPER, mfc="white", ms=4, label="published")
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    for place in headings:
        axes.get_yticklabels()[place].set_fontweight("bold")
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("memory of a step [%]")
    axes.set_ylim(len(names) - 0.3, -0.7)
    axes.legend(loc="lower right", fontsize="small")
    return figure


def prefixes():
    rows = [(row[0], row[1], value(row[2])) for row in table("larger", "| recipe")]
    last = value(table("larger", "| bits")[-1][2])
    names = [re.sub(r"^the same, |, as in.*", "", name) for name, _, _ in rows]
    names = [
        f"{name}\n({updates} updates)"
        for name, (_, updates, _) in zip(names, rows, strict=True)
    ]
    figure, axes = pyplot.subplots(figsize=(4, 3.4))
    axes.barh([*names, "this recipe"], [*(row[2] for row in rows), last], color=PLAIN)
    axes.set_xlabel("512 bits right [%]")
    axes.set_xlim(0, 100)
    axes.tick_params(axis="y", labelsize="small")
    axes.invert_yaxis()
    return figure


def mazes():
    return _larger("| side", "side", (7, 4))


def chains():
    return _larger("| nodes of a chain", "nodes", (5, 6))


def _larger(first, noun, ends):
    """Draws results of larger problems over the budget, for a model and its twin.

    Bars are standard deviations over seeds. `ends` are the ends of the columns to draw.
    """
    figure, all_axes = pyplot.subplots(2, figsize=(4, 4.6), sharex=True)
    titles = ("equilibrium", "explicit twin, run for more layers")
    for number, (axes, title) in enumerate(zip(all_axes, titles, strict=True)):
        rows = table("larger", first, number)
        counts = header("larger", first, number)[: ends[number] - 1]
        shades = pyplot.get_cmap("Greens" if number else "Blues")
        for index, row in enumerate(rows):
            cells = [[*values(cell), 0.0][:2] for cell in row[1 : ends[number]]]
            mean, deviation = np.array(cells).T
            deviation[["±" not in cell for cell in row[1 : ends[number]]]] = 0
            bars = np.minimum(deviation, [mean, 100 - mean])
            color = shades(0.35 + 0.2 * index)
            label = f"{noun} {row[0]}" if noun == "side" else f"{row[0]} {noun}"
            style = {"color": color, "marker": "o", "capsize": 2}
            axes.errorbar(counts, mean, bars, label=label, **style)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set(xscale="log", ylabel="right [%]", ylim=(-3, 103))
        axes.legend(fontsize="small", labelspacing=0.2)
    all_axes[1].set_xlabel("evaluations of f, or layers")
    all_axes[1].xaxis.set_major_locator(ticker.LogLocator(2))
    all_axes[1].xaxis.set_major_formatter("{x:g}")
    all_axes[1].xaxis.set_minor_locator(ticker.NullLocator())
    return figure


def synthetic():
    rows = table("penalties", "| γ")
    figure, axes = label_axes("weight of the penalty γ", "NFE to a residual of 1e-3")
    solvers = {"plain iteration": (3, "o"), "Anderson": (4, "^"), "Broyden": (5, "s")}
    for index, (name, (column, marker)) in enumerate(solvers.items()):
        mean, deviation = np.array([values(row[column])[:2] for row in rows]).T
        places = np.array([value(row[0]) for row in rows]) + 0.15 * (index - 1)
        style = {"fmt": marker, "color": f"C{index + 5}", "capsize": 3}
        axes.errorbar(places, mean, deviation, label=name, **style)
    axes.set_yscale("log")
    axes.set_yticks([2, 5, 10, 20], ["2", "5", "10", "20"])
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xticks([value(row[0]) for row in rows])
    axes.legend()
    return figure


def vision():
    counts, *columns = zip(*table("penalties", "| NFE on CIFAR-10"), strict=True)
    counts = list(map(value, counts))
    figure, (scores, residuals) = pyplot.subplots(2, figsize=(4, 4.6), sharex=True)
    for column, axes, name, color in zip(
        columns,
        (scores, scores, residuals, residuals),
        ("plain", "Frobenius penalty") * 2,
        (PLAIN, FROBENIUS) * 2,
        strict=True,
    ):
        # A cell without a deviation has a deviation of 0.
        means, deviations = np.array([[*values(cell), 0.0][:2] for cell in column]).T
        axes.plot(counts, means, "o-", color=color, label=name)
        low, high = means - deviations, means + deviations
        axes.fill_between(counts, low, high, color=color, alpha=0.2)
    scores.set_ylabel("test accuracy [%]")
    residuals.set(yscale="log", ylabel="residual", xlabel="function evaluations (NFE)")
    scores.legend()
    return figure


FIGURES = {
    "copy_memory": copy_memory,
    "costs": costs,
    "defaults": defaults,
    "gpu": gpu,
    "gradients": gradients,
    "imaging": imaging,
    "language": language,
    "papers": papers,
    "prefixes": prefixes,
    "mazes": mazes,
    "chains": chains,
    "synthetic": synthetic,
    "transport": transport,
    "vision": vision,
    "world": world,
}


def write(figures, folder=IMAGES, style=()):
    """Writes a figure `NAME.svg` for each name of `figures`.

    Args:
        figures: Dict of names to functions that return a figure.
        folder: Path of the folder to write to.
        style: Dict of settings of Matplotlib.
    """
    # The same figure is the same file.
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    for name, draw in figures.items():
        with pyplot.rc_context({"svg.hashsalt": "deq_keras", **dict(style)}):
            figure = draw()
            figure.savefig(Path(folder) / f"{name}.svg")
            pyplot.close(figure)


def main(folder=IMAGES):
    """Writes the figures of the pages in docs/results to a folder."""
    style = {
        "axes.axisbelow": True,
        "axes.grid": True,
        "figure.constrained_layout.use": True,
        "figure.figsize": (4, 2.9),
        "grid.alpha": 0.3,
        "legend.framealpha": 0.6,
    }
    write(FIGURES, folder, style)


if __name__ == "__main__":
    main()
