"""Trains, measures and tabulates the models of all seeds."""

import functools
import math

import keras
import numpy as np

from ...data.reasoning import PrefixSums
from ...evaluation.summary import aligned, cell, spread, to_csv
from ...files import records
from ...files.atomic_file import write_text
from ...runs.job import build_optimizer, in_segments
from .. import study_runs
from .model import build, measure

_EPOCHS = 1  # Every string is seen once.
_HEADING = ["bits", "budget", "runs", "right", "smallest", "NFE", "residual"]


def run(config, directory):
    """Runs the study; prints and saves the table.

    Writes `results.csv` and `results.json` (all runs), `summary.csv`, `summary.json`
    and `report.txt` (by length and budget), and for each run a folder with its model,
    history and result.

    Args:
        config: the `PrefixesConfig`.
        directory: its `WorkDirectory`. Runs that are already finished in it are kept.

    Raises:
        InputError: if a part of the config cannot be used.
    """
    # The model and the optimizer, once: nothing is written before that.
    model = build(config, config.seeds[0])
    _trainable(
        model, PrefixSums().examples(np.random.default_rng(0), 1, config.length), config
    )
    num_steps = math.ceil(config.train_examples / config.batch_size)
    build_optimizer(config.optimizer, _EPOCHS, num_steps, "float32")
    with directory.in_use():
        _run(config, directory)


def _run(config, directory):
    results = []
    for seed in config.seeds:
        result = study_runs.finished(
            directory, f"seed-{seed}", functools.partial(_trained, config, seed), _line
        )
        results.append(result)
        print(_line(result), flush=True)
    _write_tables(config, directory.path, results)
    print(f"\nModels and tables are in {directory.path}.")


def _trained(config, seed):
    """Returns the model of a seed, its history and its result."""
    model = build(config, seed)
    generator = np.random.default_rng(seed)
    strings = PrefixSums().examples(generator, config.train_examples, config.length)
    trainable = _trainable(model, strings, config)
    history, seconds = study_runs.fit(
        trainable,
        strings.inputs,
        strings.targets,
        config.batch_size,
        _EPOCHS,
        config.optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return (
        model,
        history,
        {
            "seed": seed,
            "updates": int(trainable.optimizer.iterations),
            "seconds": seconds,
            "solves": measure(model, config.measurement, seed),
        },
    )


def _trainable(model, strings, config):
    """Returns the model that `fit` trains, possibly in segments."""
    if config.segments is None:
        return model
    examples = (strings.inputs, strings.targets)
    return in_segments(model, examples, config.batch_size, config.segments)


def _write_tables(config, path, results):
    summaries = summarize(results)
    records.write_json(path / "results.json", results)
    records.write_json(path / "summary.json", summaries)
    write_text(path / "results.csv", to_csv(flatten(results)))
    write_text(path / "summary.csv", to_csv(summaries))
    text = (
        f"Trained on strings of {config.length} bits. Mean +- standard deviation over "
        "the seeds of the share\nof strings in % all of whose parities are right, of "
        f"{config.measurement.examples}, and the smallest share; NFE is the mean\n"
        "over strings, the residual the largest of a string, averaged over seeds.\n\n"
        f"{render(summaries)}"
    )
    write_text(path / "report.txt", text + "\n")
    print(f"\n{text}")


def _line(result):
    solves = ", ".join(
        f"{row['length']} bits at NFE {row['evaluations']:.0f}: {row['right']:.1f} %"
        for row in result["solves"]
    )
    return (
        f"seed {result['seed']}: {solves} ({result['updates']} updates, "
        f"{result['seconds']:.0f} s)"
    )


def flatten(results):
    """Returns one dict for each run, length and budget."""
    return [
        {"seed": result["seed"], **row}
        for result in results
        for row in result["solves"]
    ]


def summarize(results):
    """Returns one dict for each length and budget: mean and deviation over the seeds.

    Args:
        results: list of one dict for each run, with `seed` and `solves`, what `measure`
            returned.
    """
    groups = {}
    for row in flatten(results):
        groups.setdefault((row["length"], row["budget"]), []).append(row)
    return [
        {
            "length": length,
            "budget": budget,
            "runs": len(rows),
            "smallest": min(row["right"] for row in rows),
            **spread("right", [row["right"] for row in rows]),
            **spread("evaluations", [row["evaluations"] for row in rows]),
            **spread(
                "residual",
                [row["residual"] for row in rows if row["residual"] is not None],
            ),
        }
        for (length, budget), rows in groups.items()
    ]


def render(summaries):
    """Returns the summaries as text, a line for each length and budget."""
    rows = [_HEADING]
    for summary in summaries:
        rows.append(
            [
                *(str(summary[name]) for name in ("length", "budget", "runs")),
                cell(summary, "right", 2),
                f"{summary['smallest']:.1f}",
                cell(summary, "evaluations", 1),
                cell(summary, "residual", 4),
            ]
        )
    return aligned(rows, left=0)
