"""Trains and measures the models of all tasks, seeds and variants."""

import functools
import math

from ...config import reading as configs
from ...errors import InputError
from ...evaluation.summary import to_csv
from ...files import records
from ...files.atomic_file import write_text
from ...runs.job import build_optimizer
from .. import study_runs
from . import table
from .measure import measure
from .model import build, training_peak
from .tasks import TASKS


def run(config, directory):
    """Runs the study; prints and saves the table.

    Writes `results.csv` and `results.json` (all runs), `summary.csv`, `summary.json`
    and `report.txt` (by task and variant), and for each run a folder with its model,
    history and result.

    Args:
        config: the `DefaultsConfig`.
        directory: its `WorkDirectory`. Runs that are already finished in it are kept.

    Raises:
        InputError: if a part of the config cannot be used.
    """
    _check(config)
    with directory.in_use():
        _run(config, directory)


def _run(config, directory):
    results = []
    for index, task in enumerate(config.tasks):
        memory = {}  # Memory of each variant, if known; it does not depend on the seed.
        for seed in config.seeds:
            for variant in config.variants:
                result = study_runs.finished(
                    directory,
                    f"{task.name}-{variant}-seed-{seed}",
                    functools.partial(
                        _trained, config, index, variant, seed, memory.get(variant)
                    ),
                    _line,
                )
                memory[variant] = result["memory"]
                results.append(result)
                print(_line(result), flush=True)
    _write_tables(config, directory.path, results)
    print(f"\nModels and tables are in {directory.path}.")


def _check(config):
    names = [task.name for task in config.tasks]
    if len(set(names)) < len(names):
        raise InputError(
            f"`tasks` must have different names. Received: {', '.join(names)}."
        )
    for index, reference in enumerate(config.references):
        if reference not in config.variants:
            raise InputError(
                f"`references.{index}` must be one of the variants, "
                f"{', '.join(config.variants)}. Received: references={reference!r}."
            )
    for variant in config.variants:
        _check_models(configs.variant(config, variant))


def _check_models(config):
    """Builds the model of every task once, before anything is written."""
    seed = config.seeds[0]
    for task in config.tasks:
        inputs = TASKS[task.name].draw(task, seed)[0].inputs
        build(config.equilibrium, task, inputs.shape[1:], seed)
        num_steps = math.ceil(len(inputs) / task.batch_size)
        build_optimizer(task.optimizer, _num_epochs(config, task), num_steps, "float32")


def _num_epochs(config, task):
    return max(1, round(task.epochs * config.updates))


def _trained(config, index, variant, seed, memory):
    """Returns the model of a run, its history and its result.

    `memory` is the memory of a step, or `None` if not measured yet.
    """
    changed = configs.variant(config, variant)
    task_config = changed.tasks[index]
    task = TASKS[task_config.name]
    training, testing = task.draw(task_config, seed)
    if memory is None:
        memory = training_peak(changed.equilibrium, task_config, training, seed)
    model = build(changed.equilibrium, task_config, training.inputs.shape[1:], seed)
    history, seconds = study_runs.fit(
        model,
        training.inputs,
        training.targets,
        task_config.batch_size,
        _num_epochs(changed, task_config),
        task_config.optimizer,
        task.loss(),
    )
    loss = history[-1]["loss"]
    result = {
        "task": task_config.name,
        "variant": variant,
        "seed": seed,
        "loss": loss if math.isfinite(loss) else None,
        "updates": int(model.optimizer.iterations),
        "seconds": seconds,
        "memory": memory,
        **measure(model, task.score, testing, changed.measurement),
    }
    return model, history, result


def _write_tables(config, path, results):
    summaries = table.summarize(results, config.references)
    records.write_json(path / "results.json", results)
    records.write_json(path / "summary.json", summaries)
    write_text(path / "results.csv", to_csv(results))
    write_text(path / "summary.csv", to_csv(summaries))
    text = (
        "Mean +- standard deviation over seeds, without failed runs. The score is "
        "test accuracy,\nfor regression R^2, in %, at the budget that was trained and "
        "at a longer one; the gap is\nthe score less that of the best of "
        f"{', '.join(config.references)} with the same seed; residual and\nNFE are "
        "those of the trained budget; the radius is of the share of samples, `found`, "
        "for\nwhich it converged. Updates and seconds are those of training; MiB is by "
        "how much memory\ngrows in a training step.\n\n"
        f"{table.render(summaries, config.measurement.long_budget)}"
    )
    write_text(path / "report.txt", text + "\n")
    print(f"\n{text}")


def _line(result):
    name = f"{result['task']}, seed {result['seed']}, {result['variant']}"
    if table.has_failed(result):
        return f"{name}: failed, not all numbers are finite"
    return (
        f"{name}: score {result['score']:.2f}, {result['long_score']:.2f} with the "
        f"long budget, residual {result['residual']:.4f}, spectral radius "
        f"{_radius(result)}, NFE {result['evaluations']:.1f} "
        f"({result['updates']} updates, {result['seconds']:.0f} s, "
        f"{_memory(result)})"
    )


def _radius(result):
    if result["spectral_radius"] is None:
        return "not found"
    share = result["spectral_radius_converged"]
    mark = "" if share == 1 else f" (found for {share:.0%})"
    return f"{result['spectral_radius']:.3f}{mark}"


def _memory(result):
    if result["memory"] is None:
        return "memory not measurable"
    return f"{result['memory']:.1f} MiB"
