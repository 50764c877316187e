"""Trains the variants of an image classifier and compares them.

The shape of Table 3 of Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian
Regularization": accuracy at fixed budgets of function evaluations.
"""

import json

import keras

from training import data as datasets
from training import report
from training.atomic_file import write_text
from training.classification_job import ClassificationJob
from training.config import variant
from training.diagnose import diagnose, write_residuals
from training.errors import InputError
from training.evaluate import accuracy_at_budgets
from training.plots import plot_accuracy, plot_residuals
from training.train import check, train


def run(config, directory):
    """Trains, measures and compares all variants; prints and saves the report.

    Args:
        config: the `ClassificationConfig`.
        directory: its `WorkDirectory`. What is already finished in it is kept.
    """
    variants = {name: variant(config, name) for name in config.variants}
    data = {name: datasets.load(variants[name].data) for name in variants}
    # A mistake in the last variant should not wait for the training of the first.
    for name in variants:
        check(ClassificationJob(variants[name], data[name]))
    evaluations, diagnoses = {}, {}
    for name in variants:
        print(f"{name}: training in {directory.run(name)}", flush=True)
        job = ClassificationJob(variants[name], data[name])
        model, _ = train(job, directory.run(name))
        evaluations[name] = evaluate_variant(model, directory, name, data[name])
        diagnoses[name] = diagnose_variant(model, directory, name, data[name])
    plot_accuracy(directory.path / "accuracy.png", evaluations)
    plot_residuals(directory.path / "residuals.png", diagnoses)
    text = report.report(directory)
    write_text(directory.path / "report.txt", text + "\n")
    print(f"\n{text}\n\nModels, figures and tables are in {directory.path}.")


def evaluate_variant(model, directory, name, data, budgets=None):
    """Measures and saves the accuracy of a variant at the config's budgets."""
    config = variant(directory.config, name)
    rows = accuracy_at_budgets(
        model,
        data.test,
        budgets or config.evaluation.budgets,
        config.data.evaluation_batch_size,
    )
    _write_json(directory.run(name) / report.EVALUATION, rows)
    return rows


def diagnose_variant(model, directory, name, data):
    """Measures and saves residual curves and spectral radius of a variant."""
    config = variant(directory.config, name)
    samples = data.test.part(0, config.evaluation.num_samples)
    result = diagnose(model, samples, config.evaluation.max_iter)
    folder = directory.run(name)
    _write_json(folder / report.DIAGNOSIS, result)
    write_residuals(folder / "residuals.csv", result["residual_quantiles"])
    plot_residuals(folder / "residuals.png", {name: result})
    return result


def load_variant(directory, name, file_name="model.keras"):
    """Returns the saved model of a variant.

    Raises:
        InputError: if it has not been trained to its end.
    """
    path = directory.run(name) / file_name
    if not path.is_file():
        raise InputError(
            f"There is no {path}. Finish the training first: deq-keras train "
            f"--resume --work-dir {directory.path}."
        )
    return keras.models.load_model(path)


def _write_json(path, value):
    write_text(path, json.dumps(value, indent=2) + "\n")
