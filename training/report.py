"""The table of a run, from what its folder holds. Needs no TensorFlow."""

import csv
import json

HISTORY = "history.csv"
EVALUATION = "evaluation.json"
DIAGNOSIS = "diagnosis.json"


def report(directory):
    """Returns the text that compares the variants of a work directory.

    Args:
        directory: a `WorkDirectory` of a classification experiment, finished or not.
    """
    total = sum(phase.epochs for phase in directory.config.phases)
    folders = {name: directory.path / name for name in directory.config.variants}
    parts = [_progress(folders, total)]
    evaluations = _present(folders, EVALUATION)
    if evaluations:
        parts.append(_accuracy_table(evaluations))
    diagnoses = _present(folders, DIAGNOSIS)
    if diagnoses:
        parts.append(_diagnosis_table(diagnoses))
    return "\n\n".join(parts)


def _progress(folders, total):
    rows = [["", "epochs", "training time [s]", "val. accuracy"]]
    for name, folder in folders.items():
        history = _history(folder)
        seconds = sum(float(row["seconds"]) for row in history)
        accuracy = f"{float(history[-1]['val_accuracy']):.2%}" if history else "-"
        rows.append([name, f"{len(history)} / {total}", f"{seconds:.1f}", accuracy])
    return _aligned(rows)


def _accuracy_table(evaluations):
    budgets = sorted({row["budget"] for rows in evaluations.values() for row in rows})
    table = [["test accuracy [%] at NFE", *map(str, budgets)]]
    for name, rows in evaluations.items():
        accuracy = {row["budget"]: f"{100 * row['accuracy']:.1f}" for row in rows}
        table.append([name, *(accuracy.get(budget, "-") for budget in budgets)])
    table.append(["residual at NFE", *map(str, budgets)])
    for name, rows in evaluations.items():
        residual = {row["budget"]: f"{row['residual']:.2g}" for row in rows}
        table.append([name, *(residual.get(budget, "-") for budget in budgets)])
    return _aligned(table)


def _diagnosis_table(diagnoses):
    rows = [["", "mean NFE", "residual", "converged", "spectral radius", "(90 %)"]]
    for name, diagnosis in diagnoses.items():
        radius = diagnosis["spectral_radius"]
        rows.append(
            [
                name,
                f"{diagnosis['evaluations']:.1f}",
                f"{diagnosis['residual']:.2g}",
                f"{diagnosis['converged']:.0%}",
                f"{radius['mean']:.3f}",
                f"{radius['q90']:.3f}",
            ]
        )
    budget = len(next(iter(diagnoses.values()))["residual_quantiles"])
    note = f"Means of solves to the trained tolerance, at most {budget} evaluations:"
    return f"{note}\n{_aligned(rows)}"


def _history(folder):
    file = folder / HISTORY
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _present(folders, file_name):
    return {
        name: json.loads((folder / file_name).read_text(encoding="utf-8"))
        for name, folder in folders.items()
        if (folder / file_name).is_file()
    }


def _aligned(rows):
    """Text columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [
            cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)
        ]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
