"""The table of the small tasks. Does not import TensorFlow."""

import math

from ...config.reading import variant_of
from ...evaluation import report
from ...evaluation.summary import table

# Heading, key and format of each number.
_COLUMNS = (
    ("score", "score", ".2f"),
    ("gap", "gap", ".2f"),
    ("at most NFE", "long_score", ".2f"),
    ("residual", "residual", ".4f"),
    ("radius", "radius", ".3f"),
    ("found", "found", ".2f"),
    ("NFE", "evaluations", ".1f"),
    ("updates", "updates", ".0f"),
    ("seconds", "seconds", ".1f"),
    ("MiB", "memory", ".1f"),
)
_NOTE = """\
Without failed runs, in which a number is not finite. The score is test accuracy, for
regression R^2, in %, at the budget that was trained and at the largest one; the gap is
the score less that of the best of {references} with the same seed; residual and NFE
are those of the trained budget; the radius is of the samples, `found`, for which it
converged. Updates and seconds are those of training; MiB is by how much memory grows
in a training step."""


def of_tasks(directory):
    """Returns the table of tasks and variants, or `None` without measurements.

    Args:
        directory: The `WorkDirectory` of the run.
    """
    runs = numbers(directory)
    if not runs:
        return None
    groups = {}
    for name, run in runs.items():
        task, _, variant = variant_of(name).rpartition(".")
        groups.setdefault((task, variant), []).append(run)
    counted = {}
    for key, group in groups.items():
        trained = [run for run in group if not run["failed"]]
        failed = f"{len(group) - len(trained)}/{len(group)}"
        counted[(*key, failed)] = trained
    references = ", ".join(directory.config.references)
    text = table(["task", "variant", "failed"], _COLUMNS, counted)
    return f"{text}\n{_NOTE.format(references=references)}"


def numbers(directory):
    """Returns a dict from runs to their numbers, by the keys of the columns and
    `failed`. Numbers that were not found or cannot be measured are `None`."""
    evaluations, (_, diagnoses) = (
        report.evaluations(directory),
        report.measurements(directory),
    )
    histories = report.histories(directory)
    runs = {
        name: _numbers(evaluation, diagnoses.get(name), histories[name])
        for name, evaluation in evaluations.items()
    }
    for name, run in runs.items():
        best = _best_score(runs, name, directory.config.references)
        run["gap"] = None if best is None else run["score"] - best
    return runs


def _numbers(evaluation, diagnosis, history):
    rows = {row["budget"]: row for row in evaluation["budgets"]}
    own, longest = rows[evaluation["own_budget"]], rows[max(rows)]
    radius = {} if diagnosis is None else diagnosis["spectral_radius"]
    run = {
        **{name: own[name] for name in ("score", "residual", "evaluations")},
        "long_score": longest["score"],
        "loss": float(history[-1]["loss"]),
        "updates": evaluation["updates"],
        "seconds": sum(float(row["seconds"]) for row in history),
    }
    failed = not all(map(math.isfinite, run.values()))
    return {
        **run,
        "failed": failed,
        "radius": radius.get("mean"),
        "found": radius.get("converged"),
        "memory": evaluation["memory"],
    }


def _best_score(runs, name, references):
    """Returns the best score of the references with the task and seed of a run, or
    `None` if none of them has been trained to finite numbers."""
    task, _, rest = name.rpartition(".")
    seed = rest.partition("/")[2]
    prefix, suffix = task and f"{task}.", seed and f"/{seed}"
    names = [f"{prefix}{reference}{suffix}" for reference in references]
    scores = [runs[name]["score"] for name in names if name in runs]
    return max(filter(math.isfinite, scores), default=None)
