"""Trains, measures and draws the models of all weights and seeds."""

import functools
import math

from ...errors import InputError
from ...evaluation.summary import to_csv
from ...files import records
from ...files.atomic_file import write_text
from ...runs.job import build_optimizer
from .. import study_runs
from . import table
from .figure import plot_study
from .measure import measure
from .model import build, draw


def run(config, directory):
    """Runs the study; prints and saves the table, saves the figure.

    Writes `results.csv` and `results.json` (all runs), `summary.csv` and `report.txt`
    (by weight) and `surfaces.png`, and for each run a folder with its model, history
    and result.

    Args:
        config: the `SyntheticConfig`.
        directory: its `WorkDirectory`. Runs that are already finished in it are kept.

    Raises:
        InputError: if a part of the config cannot be used.
    """
    _check(config)
    with directory.in_use():
        _run(config, directory)


def _check(config):
    """Builds every model once, before anything is written."""
    if config.figure.seed not in config.seeds:
        raise InputError(
            f"`figure.seed` must be one of `seeds`, {config.seeds}. "
            f"Received: seed={config.figure.seed}."
        )
    for weight in config.weights:
        build(config, weight, config.seeds[0])
    num_steps = math.ceil(config.data.train_examples / config.data.batch_size)
    build_optimizer(config.optimizer, config.epochs, num_steps, "float32")


def _run(config, directory):
    results = []
    for seed in config.seeds:
        for weight in config.weights:
            result = study_runs.finished(
                directory,
                _name(weight, seed),
                functools.partial(_trained, config, weight, seed),
                _line,
            )
            results.append(result)
            print(_line(result), flush=True)
    _write_tables(config, directory.path, results)
    models = _drawn_models(config, directory, results)
    if models:
        plot_study(directory.path / "surfaces.png", models, config)
    print(f"\nModels, tables and the figure are in {directory.path}.")


def _trained(config, weight, seed):
    """Returns the model of a run, its history and its result."""
    model = build(config, weight, seed)
    training, validation = draw(config.data, seed)
    history, seconds = study_runs.fit(
        model,
        training.x,
        training.y,
        config.data.batch_size,
        config.epochs,
        config.optimizer,
        "mse",
    )
    result = {
        "weight": weight,
        "seed": seed,
        "seconds": seconds,
        "lowest_converged_share": min(row["deq_converged"] for row in history),
        **measure(model, validation, config.measurement),
    }
    return model, history, result


def _write_tables(config, path, results):
    flat = [table.flatten(result) for result in results]
    summaries = table.summarize(flat)
    records.write_json(path / "results.json", results)
    write_text(path / "results.csv", to_csv(flat))
    write_text(path / "summary.csv", to_csv(summaries))
    settings = config.measurement
    text = (
        "Mean +- standard deviation over seeds, without failed runs, on "
        f"{config.data.validation_examples} validation pairs (noise "
        f"{config.data.noise:g}); NFE to a relative residual of {settings.tol:g}, at "
        f"most {settings.max_iter}:\n"
        f"{table.render(summaries, settings.solvers)}"
    )
    write_text(path / "report.txt", text + "\n")
    print(f"\n{text}")


def _drawn_models(config, directory, results):
    """Returns weight -> model of the figure's seed, without those that failed."""
    return {
        result["weight"]: study_runs.trained_model(
            directory, _name(result["weight"], result["seed"])
        )
        for result in results
        if result["seed"] == config.figure.seed and not result["failed"]
    }


def _name(weight, seed):
    return f"gamma-{weight:g}-seed-{seed}"


def _line(result):
    run = f"gamma {result['weight']:g}, seed {result['seed']}"
    if result["failed"]:
        return f"{run}: failed, a constant predicts better ({result['seconds']:.0f} s)"
    counts = ", ".join(
        f"{table.LABELS[name]} {numbers['evaluations']:.1f}"
        for name, numbers in result["solvers"].items()
    )
    return (
        f"{run}: validation RMSE {result['rmse']:.4f}, mean |df/dz| "
        f"{result['mean_slope']:.3f}, NFE {counts} ({result['seconds']:.0f} s)"
    )
