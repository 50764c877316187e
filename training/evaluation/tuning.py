"""Choice of the cheapest solver of a run that keeps the predictions of its model."""

import sys
import warnings

import keras

from deq_keras.tuning import Promise, Tuning, describe, tune

from ..errors import InputError
from ..files import records
from . import plots
from .budgets import equilibrium

# Columns of the table for the fields of an `Outcome`.
_OUTCOME = ("changed", "samples", "bound", "evaluations")
TABLE, RECORD, FIGURE = "tune.csv", "tune.json", "tune"


def tune_run(model, groups, promise, batch_size, label=None):
    """Tunes the solver of a trained model on the test examples of its run.

    Args:
        model: The model of the run.
        groups: Dict from labels of groups of test examples to their inputs.
        promise: Arguments of `deq_keras.tuning.Promise`.
        batch_size: Positive integer.
        label: String. Label of a group of test examples. Defaults to `None`, the only
            group.

    Returns:
        A `deq_keras.tuning.Tuning`.

    Raises:
        InputError: If the model is explicit, or every solver breaks the promise.
    """
    if equilibrium(model) is None:
        raise InputError("The model has no equilibrium, so there is no solver to tune.")
    try:
        return tune(
            model,
            _select(groups, label),
            Promise(*promise),
            batch_size=batch_size,
            progress=_progress(),
        )
    except ValueError as error:
        raise InputError(str(error)) from error


def write(tuning, folder, suffix="png"):
    """Writes table, record and figure of a `Tuning`; returns the names of the files.

    Args:
        tuning: The `deq_keras.tuning.Tuning`.
        folder: `pathlib.Path` of the run.
        suffix: String. Format of the figure: `"png"`, `"svg"` or `"pdf"`.
    """
    candidates = {}
    for setting in tuning.settings:
        # A candidate is a solver without its budget and its tolerance.
        name, _, arguments = describe(setting.solver).partition("(")
        _, _, *others = arguments[:-1].split(", ")
        label = f"{name}({', '.join(others)})" if others else name
        candidates.setdefault(label, []).append(setting)
    rows = [
        {
            "candidate": label,
            "max_iter": solver.max_iter,
            "tol": solver.tol,
            **dict(zip(_OUTCOME, outcome, strict=True)),
        }
        for label, settings in candidates.items()
        for solver, outcome in settings
    ]
    records.write_csv(folder / TABLE, rows)
    figure = f"{FIGURE}.{suffix}"
    plots.plot_tuning(folder / figure, tuning, candidates)
    records.write_json(folder / RECORD, tuning.as_dict())
    return [TABLE, RECORD, figure]


def apply(model, folder):
    """Sets the solver that `write` recorded; returns its `Tuning`.

    Args:
        model: The model of the run.
        folder: `pathlib.Path` of the run.

    Raises:
        InputError: If the solver of the run was not tuned, or its record is corrupt.
    """
    path = folder / RECORD
    remedy = "Write it with deq-keras tune."
    if not path.exists():
        raise InputError(f"There is no {path}. {remedy}")
    record = records.read_json(path, remedy)
    try:
        tuning = Tuning.from_dict(record)
    except ValueError as error:
        raise InputError(f"{path} is corrupt. {remedy} {error}") from error
    with warnings.catch_warnings():
        # The caller prints the verdict of which it warns.
        warnings.simplefilter("ignore", UserWarning)
        tuning.apply(equilibrium(model))
    return tuning


def _select(groups, label):
    """Returns the inputs of a group of test examples."""
    if label is None and len(groups) == 1:
        return next(iter(groups.values()))
    if label not in groups:
        raise InputError(
            f"Choose one --group of {', '.join(map(repr, groups))}. Received: {label}."
        )
    return groups[label]


def _progress():
    """Returns a function that shows a bar, or `None` unless stdout is a terminal."""
    if not sys.stdout.isatty():
        return None
    bars = []

    def progress(done, total):
        bars[:] = bars or [keras.utils.Progbar(total, unit_name="solve")]
        bars[0].update(done)

    return progress
