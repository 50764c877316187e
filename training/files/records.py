"""Reading and writing of a run's numbers. Does not import TensorFlow."""

import csv
import io
import json

from ..errors import reading
from .atomic_file import write_text

MODEL = "model.keras"
HISTORY = "history.csv"
EVALUATION = "evaluation.json"
DIAGNOSIS = "diagnosis.json"


def write_csv(path, rows):
    """Writes a list of dicts as CSV, with the columns of all rows."""
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_history(path, remedy):
    """Returns the rows of a history, dicts of strings.

    Raises:
        InputError: If the file is corrupt.
    """
    with reading(path, remedy):
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            raise ValueError("Its end is missing.")
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        for epoch, row in enumerate(rows, start=1):
            if int(row["epoch"]) != epoch or None in row or None in row.values():
                raise ValueError(f"The line of epoch {epoch} is not whole.")
            for name, value in row.items():
                if name != "phase" and value:
                    float(value)
    return rows


def num_epochs(folder):
    """Returns the number of epochs in the history of a run, 0 without a history.

    Counts the lines of a history that is corrupt, which may be one epoch too many.
    """
    path = folder / HISTORY
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def write_json(path, value):
    """Writes plain data as JSON."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path, remedy):
    """Returns the contents of a JSON file.

    Raises:
        InputError: If it is not JSON.
    """
    with reading(path, remedy):
        return json.loads(path.read_text(encoding="utf-8"))


def read_evaluation(path, score, remedy):
    """Returns the evaluation of a variant: `parameters`, and `budgets`, a list with one
    dict per budget.

    Args:
        path: Path of the file.
        score: String. Key of the score in these dicts.
        remedy: String. Sentence that says how to replace a corrupt file.

    Raises:
        InputError: If the file is corrupt.
    """
    evaluation = read_json(path, remedy)
    with reading(path, remedy):
        _check_numbers([evaluation], "parameters")
        _check_numbers(evaluation["budgets"], "budget", score)
        residuals = [
            row for row in evaluation["budgets"] if row["residual"] is not None
        ]
        _check_numbers(residuals, "residual")
    return evaluation


def read_diagnosis(path, remedy):
    """Returns the diagnosis of a variant, a result of `training.evaluation.diagnose`.

    Raises:
        InputError: If the file is corrupt.
    """
    diagnosis = read_json(path, remedy)
    with reading(path, remedy):
        _check_numbers([diagnosis], "evaluations", "residual", "converged")
        radius = diagnosis["spectral_radius"]
        _check_numbers([radius], "converged")
        if radius["mean"] is not None:  # `None` without any reliable estimate.
            _check_numbers([radius], "mean", "q90")
        quantiles = diagnosis["residual_quantiles"]
        _check_numbers(quantiles, "budget", "q25", "q50", "q75")
        quantiles[0]
        _check_numbers(diagnosis["samples"], "residual", "jacobian_norm")
    return diagnosis


def _check_numbers(rows, *names):
    for row in rows:
        for name in names:
            if not isinstance(row[name], int | float) or isinstance(row[name], bool):
                raise TypeError(f"`{name}` must be a number. Received: {row[name]!r}.")
