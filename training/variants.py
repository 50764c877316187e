"""Trains, measures and compares the variants of a config."""

import json

import keras

from training import report
from training.atomic_file import write_text
from training.data import damage
from training.diagnose import write_residuals
from training.errors import InputError
from training.plots import plot_residuals, plot_scores
from training.train import check, train


def run(jobs, directory):
    """Trains, measures and compares all variants; prints and saves the report.

    Args:
        jobs: dict of names to `Job`s.
        directory: their `WorkDirectory`. What is already finished in it is kept.
    """
    # A mistake in the last variant should not wait for the training of the first.
    for job in jobs.values():
        check(job)
    for name, job in jobs.items():
        folder = directory.run(name)
        print(f"{name}: training in {folder}", flush=True)
        model, _ = train(job, folder)
        if not (folder / report.EVALUATION).is_file():
            evaluate(job, model, folder)
        if not (folder / report.DIAGNOSIS).is_file():
            diagnose(job, model, folder, name)
    score = report.SCORES[directory.config.experiment]
    evaluations, diagnoses = report.measurements(directory)
    plot_scores(directory.path / f"{score.name}.png", evaluations, score)
    if diagnoses:
        plot_residuals(directory.path / "residuals.png", diagnoses)
    text = report.report(directory)
    write_text(directory.path / "report.txt", text + "\n")
    print(f"\n{text}\n\nModels, figures and tables are in {directory.path}.")


def evaluate(job, model, folder, budgets=None):
    """Measures and saves the score of a model at budgets; by default the config's."""
    budgets = budgets or job.config.evaluation.budgets
    with damage.reported():
        rows = job.evaluate(model, budgets)
    result = {"parameters": model.count_params(), "budgets": rows}
    _write_json(folder / report.EVALUATION, result)


def diagnose(job, model, folder, name):
    """Measures and saves residual curves and spectral radius, if there is a DEQ.

    Returns:
        Whether there is.
    """
    if job.equilibrium(model) is None:
        return False
    with damage.reported():
        result = job.diagnose(model)
    _write_json(folder / report.DIAGNOSIS, result)
    write_residuals(folder / "residuals.csv", result["residual_quantiles"])
    plot_residuals(folder / "residuals.png", {name: result})
    return True


def load_trained(directory, name):
    """Returns the saved model of a variant.

    Raises:
        InputError: if it has not been trained to its end.
    """
    path = directory.run(name) / "model.keras"
    if not path.is_file():
        raise InputError(
            f"There is no {path}. Finish the training first: deq-keras train "
            f"--resume --work-dir {directory.path}."
        )
    return keras.models.load_model(path, compile=False)


def _write_json(path, value):
    write_text(path, json.dumps(value, indent=2) + "\n")
