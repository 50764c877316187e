"""The tables of the synthetic study."""

from ...evaluation.summary import aligned, cell, spread

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
    return f"{aligned(fit, left=0)}\n\nMean NFE:\n{aligned(cost, left=0)}"


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
        summary |= spread(name, [result[name] for result in trained])
    return summary


def _cells(summary, numbers):
    return [cell(summary, name, digits) for name, digits in numbers]
