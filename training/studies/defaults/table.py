"""The table of the study of the defaults."""

from ...evaluation.summary import aligned, cell, spread

_KEYS = ("task", "variant", "seed")
# Values that were not found or cannot be measured do not count against a run.
_MAY_BE_MISSING = ("spectral_radius", "largest_spectral_radius", "memory")
_COLUMNS = (
    ("score", 2),
    ("gap", 2),
    ("long_score", 2),
    ("residual", 4),
    ("spectral_radius", 3),
    ("spectral_radius_converged", 2),
    ("evaluations", 1),
    ("updates", 0),
    ("seconds", 1),
    ("memory", 1),
)


def has_failed(result):
    """Returns whether a required number of a run is not finite."""
    return any(
        value is None for key, value in result.items() if key not in _MAY_BE_MISSING
    )


def summarize(results, references):
    """Returns one dict for each task and variant: mean and deviation over the seeds.

    Args:
        results: list of one dict for each run, with `task`, `variant` and `seed`.
        references: list of str. The variants with the best of which the others are
            compared.

    Returns:
        A list of dicts of `task`, `variant`, `runs`, `failed`, the number of runs in
        which a measured number other than the spectral radius is not finite, and
        `<name>_mean` and `<name>_std` of every number over the other runs that have it.
        `gap` is the score less the best one of the references with the same seed.
        Without a number the mean is `None`, with a single one the deviation.
    """
    groups = {}
    for result in results:
        best = _best_score(results, references, result["task"], result["seed"])
        known = best is not None and result["score"] is not None
        gap = result["score"] - best if known else None
        group = groups.setdefault((result["task"], result["variant"]), [])
        group.append((result, gap))
    return [_summary(key, group) for key, group in groups.items()]


def render(summaries, long_budget):
    """Returns the summaries as text, one block of lines for each task.

    Args:
        summaries: what `summarize` returned.
        long_budget: int. Evaluations of the longer solve, for the heading.
    """
    heading = ["task", "variant", "failed", "score", "gap"]
    heading += [f"at NFE {long_budget}", "residual", "radius", "found"]
    heading += ["NFE", "updates", "seconds", "MiB"]
    rows = [heading]
    for summary in summaries:
        if summary["task"] != rows[-1][0] and len(rows) > 1:
            rows.append([""] * len(heading))
        cells = [cell(summary, name, digits) for name, digits in _COLUMNS]
        failed = f"{summary['failed']}/{summary['runs']}"
        rows.append([summary["task"], summary["variant"], failed, *cells])
    return aligned(rows, left=0)


def _best_score(results, variants, task, seed):
    scores = [
        result["score"]
        for result in results
        if result["variant"] in variants
        and (result["task"], result["seed"]) == (task, seed)
        and result["score"] is not None
    ]
    return max(scores, default=None)


def _summary(key, group):
    trained = [
        {**result, "gap": gap} for result, gap in group if not has_failed(result)
    ]
    summary = {
        "task": key[0],
        "variant": key[1],
        "runs": len(group),
        "failed": len(group) - len(trained),
    }
    for name in (*(name for name in group[0][0] if name not in _KEYS), "gap"):
        values = [run[name] for run in trained if run[name] is not None]
        summary |= spread(name, values)
    return summary
