"""Trains all variants and measures their losses at fixed budgets of evaluations."""

import json
import math

import keras

from training.atomic_file import write_text
from training.config import variant
from training.experiments.language_model import text as texts
from training.experiments.language_model.job import LanguageModelJob
from training.experiments.language_model.table import report
from training.train import check, train


def run(config, directory):
    """Trains, measures and compares all variants; prints and saves the report.

    Args:
        config: the `LanguageModelConfig`.
        directory: its `WorkDirectory`. What is already finished in it is kept.
    """
    jobs = {}
    for name in config.variants:
        chosen = variant(config, name)
        jobs[name] = LanguageModelJob(
            chosen, texts.load(chosen.data, directory.run(name))
        )
    # A mistake in the last variant should not wait for the training of the first.
    for job in jobs.values():
        check(job)
    results = {}
    for name, job in jobs.items():
        folder = directory.run(name)
        print(f"{name}: training in {folder}", flush=True)
        model, history = train(job, folder)
        results[name] = _finished_measurement(job, model, history, folder)
    summary = report(results)
    write_text(directory.path / "report.txt", summary + "\n")
    print(f"\n{summary}\n\nModels and tables are in {directory.path}.")


def _finished_measurement(job, model, history, folder):
    file = folder / "evaluation.json"
    if not file.is_file():
        result = {
            "epochs": len(history),
            "seconds": sum(row["seconds"] for row in history),
            "parameters": model.count_params(),
            "validation_loss": _last(history, "val_loss"),
            "budgets": losses_at_budgets(model, job),
        }
        write_text(file, json.dumps(result, indent=2) + "\n")
    return json.loads(file.read_text())


def _last(history, name):
    """Returns the newest of a value that not every epoch has."""
    return next((row[name] for row in reversed(history) if name in row), None)


def losses_at_budgets(model, job):
    """Measures the validation loss at each budget of the config.

    The tolerance is that of the trained solver, so a large budget need not be used.

    Args:
        model: the trained `NextTokenLossModel`.
        job: its `LanguageModelJob`.

    Returns:
        List of dicts of `budget`, `loss` (nats a token), `perplexity`, `residual` and
        `evaluations`, means over the validation text.
    """
    deq = job.equilibrium(model)
    trained = deq.solver
    segments = texts.evaluation_segments(job.config.data, job.text.validation)
    rows = []
    for budget in job.config.evaluation.budgets:
        deq.solver = type(trained).from_config(
            {**trained.get_config(), "max_iter": budget}
        )
        model.compile(keras.optimizers.SGD(), jit_compile=job.config.jit_compile)
        logs = model.evaluate(segments, verbose=0, return_dict=True)
        rows.append(
            {
                "budget": budget,
                "loss": math.log(logs["perplexity"]),
                "perplexity": logs["perplexity"],
                "residual": logs["deq_residual"],
                "evaluations": logs["deq_evaluations"],
            }
        )
    deq.solver = trained
    return rows
