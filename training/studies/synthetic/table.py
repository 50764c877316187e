"""The tables of the synthetic study."""

import csv
import io
import statistics

LABELS = {
    "fixed_point_iteration": "fixed-point iteration",
    "anderson": "Anderson",
    "broyden": "Broyden",
}


def summarize(results):
    """Returns one dict for each weight: mean and standard deviation over the seeds.

    Args:
        results: list of one flat dict for each run, with `weight` and `seed`.

    Returns:
        A list of dicts of `weight`, `runs`, `failed`, the number of failed runs, and
        `<name>_mean` and `<name>_std` of every other number over the runs that did not
        fail. Without such a run the mean is `None`, with a single one the deviation.
    """
    weights = dict.fromkeys(result["weight"] for result in results)
    return [
        _summary(weight, [r for r in results if r["weight"] == weight])
        for weight in weights
    ]


def flatten(result):
    """Returns the result of a run with its nested names joined by underscores."""
    flat = {key: value for key, value in result.items() if key != "solvers"}
    for solver, numbers in result["solvers"].items():
        flat.update({f"{solver}_{key}": value for key, value in numbers.items()})
    return flat


def render(summaries, solvers):
    """Returns the summaries as text: errors and slopes, then evaluations by solver.

    Args:
        summaries: what `summarize` returned.
        solvers: names of the solvers, in the order of their columns.
    """
    fit = [["gamma", "runs", "failed", "RMSE", "MSE", "mean |df/dz|", "max |df/dz|"]]
    cost = [["gamma"]]
    for name in solvers:
        cost[0] += [LABELS[name], "(not converged)"]
    for summary in summaries:
        weight = f"{summary['weight']:g}"
        numbers = [("rmse", 4), ("mse", 5), ("mean_slope", 4), ("max_slope", 3)]
        counts = [str(summary["runs"]), str(summary["failed"])]
        fit.append([weight, *counts, *_cells(summary, numbers)])
        numbers = []
        for name in solvers:
            numbers += [(f"{name}_evaluations", 2), (f"{name}_not_converged", 1)]
        cost.append([weight, *_cells(summary, numbers)])
    return f"{_aligned(fit)}\n\nMean NFE:\n{_aligned(cost)}"


def to_csv(rows):
    """Returns a list of dicts with the same keys as CSV text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _summary(weight, results):
    trained = [result for result in results if not result["failed"]]
    summary = {
        "weight": weight,
        "runs": len(results),
        "failed": len(results) - len(trained),
    }
    for name in results[0]:
        if name in ("weight", "seed", "failed"):
            continue
        values = [result[name] for result in trained]
        summary[f"{name}_mean"] = statistics.fmean(values) if values else None
        summary[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else None
    return summary


def _cells(summary, numbers):
    return [
        _cell(summary[f"{name}_mean"], summary[f"{name}_std"], digits)
        for name, digits in numbers
    ]


def _cell(mean, spread, digits):
    if mean is None:
        return "-"
    text = f"{mean:.{digits}f}"
    return text if spread is None else f"{text} +- {spread:.{digits}f}"


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows
    )
