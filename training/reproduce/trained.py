"""Trains the variants of a config over seeds, and compares them in one table."""

import statistics

import numpy as np

from .. import registry
from ..config import reading as configs
from ..config import shipped
from ..errors import InputError
from ..evaluation import report
from ..evaluation.summary import at_budgets, spread
from ..runs.work_directory import WorkDirectory, is_run
from . import results

_EVALUATION = "function evaluation"
_JACOBIAN = "|J|_F^2 / entries of the state"
# Columns of a history, their labels, and whether their axis is logarithmic.
_OF_EPOCHS = {
    "_residual": ("residual", True),
    "_adjoint_residual": ("adjoint residual", True),
    "_evaluations": ("NFE", False),
    "_adjoint_evaluations": ("adjoint NFE", False),
    "_spectral_radius": ("spectral radius", False),
    "_jacobian_norm": ("Jacobian norm", False),
}


def run(folder, config, stopped, published, variants=None, overrides=()):
    """Trains the unfinished runs, and returns the `Results`.

    Args:
        folder: Folder of the experiment. The runs are in its folder `runs`.
        config: String. A shipped config.
        stopped: List of budgets at which the table has the score as well.
        published: Dict of columns to dicts of variants to published numbers.
        variants: List of variants to train; the first is the reference of the times.
            `None`: all.
        overrides: List of strings `a.b=c` that change the config.
    """
    path = folder / "runs"
    enter = WorkDirectory.resume if is_run(path) else WorkDirectory.start
    directory = enter(path, resolved(config, variants, overrides))
    _train(directory)
    score = registry.find(directory.config.experiment).score
    rows = [
        _row(directory, score, name, stopped, published)
        for name in directory.config.variants
    ]
    _add_relative_times(rows)
    num_seeds = len(directory.config.seeds or [directory.config.seed])
    note = (
        f"Number of seeds: {num_seeds}. Deviations are standard deviations. The score "
        "is taken at the budget of training, and the residual and the NFE from solves "
        "to the tolerance. Times are those of a training epoch, relative to the first "
        "row."
    )
    return results.Results(
        rows, note, lambda rows: draw(directory, score), further_figures(directory)
    )


def resolved(config, variants=None, overrides=()):
    """Returns the config of the runs; see `run`.

    Raises:
        InputError: If an override is invalid, or replaces a variant that is compared.
    """
    config = configs.load(shipped.find(config), overrides)
    if variants is None:
        return config
    if not set(variants) <= set(config.variants):
        raise InputError(
            f"The experiment compares the variants {', '.join(variants)}. Change their "
            "values, such as --set variants.NAME=VALUES, and keep their names. "
            f"Received: variants={', '.join(config.variants)}."
        )
    mapping = configs.to_mapping(config)
    mapping["variants"] = {name: mapping["variants"][name] for name in variants}
    return configs.resolve(mapping)


def _train(directory):
    from ..runs import distribution, variants

    devices = distribution.start(directory.config.distribution)
    variants.run(variants.make_jobs(directory, distribution=devices), directory)


def _row(directory, score, name, stopped, published):
    """Returns the row of a variant: means and deviations over its seeds."""
    histories, evaluations, diagnoses = _measurements(directory, name)
    scores = at_budgets(evaluations, score.name)
    weights = configs.by_variant(report.evaluations(directory))[name][0]["parameters"]
    budget = _trained_budget(directory.config, name)
    budget = budget if budget in scores else max(scores)
    row = {"network": name, "weights": weights}
    columns = {score.label: scores[budget]}
    for count in stopped:
        columns[f"at NFE {count}"] = scores.get(count, [])
    columns = {
        label: [score.scale * value for value in values]
        for label, values in columns.items()
    }
    columns |= {
        "training NFE": [_last(rows, "_evaluations") for rows in histories],
        "NFE to tolerance": [one["evaluations"] for one in diagnoses],
        "residual": [one["residual"] for one in diagnoses],
        "spectral radius": [one["spectral_radius"]["mean"] for one in diagnoses],
        "time": [
            statistics.fmean(float(row["seconds"]) for row in rows)
            for rows in histories
        ],
    }
    for label, values in columns.items():
        row[label], row[label + results.DEVIATION] = spread(values)
    for label, numbers in published.items():
        row[label] = numbers.get(name)
    return row


def _measurements(directory, name):
    """Returns lists of the histories, evaluations and diagnoses of a variant."""
    evaluations, diagnoses = report.measurements(directory)
    return [
        configs.by_variant(found).get(name, [])
        for found in (report.histories(directory), evaluations, diagnoses)
    ]


def _trained_budget(config, name):
    """Returns `max_iter` of the solver of a variant, or `None`."""
    solver = getattr(configs.variant(config, name).model, "solver", None)
    return solver.get("max_iter") if isinstance(solver, dict) else None


def _last(rows, suffix):
    """Returns the layer's column of a name in the last epoch, or `None`."""
    names = [name for name in rows[-1] if name.endswith(suffix)]
    names = [name for name in names if not name.startswith("val_") and rows[-1][name]]
    # The shortest name, because other names belong to the adjoint.
    return float(rows[-1][min(names, key=len)]) if names else None


def _add_relative_times(rows):
    first = rows[0]["time"]
    for row in rows:
        for name in ("time", "time" + results.DEVIATION):
            if row[name] is not None:
                row[name] /= first


def draw(directory, score):
    """Returns a figure: the score over budgets and over the time of training."""
    budgets, scores = {}, {}
    for name in directory.config.variants:
        histories, evaluations, _ = _measurements(directory, name)
        values = at_budgets(evaluations, score.name)
        budgets[name] = _line(list(values), values.values(), score.scale)
        _add_validation(scores, name, histories, score)
    panels = [
        results.Panel("function evaluations (NFE)", score.label, budgets),
        results.Panel("training time [min]", f"validation {score.heading}", scores),
    ]
    return results.curves([panel for panel in panels if panel.lines])


def further_figures(directory):
    """Returns the figures of training, of single evaluations and of samples.

    Empty if no variant has an equilibrium.
    """
    from . import equilibria

    training = training_rows(directory)
    if not training:
        return {}
    solved = list(dict.fromkeys(row["network"] for row in training))
    runs = [
        run
        for run in configs.run_names(directory.config)
        if configs.variant_of(run) in solved
    ]
    found = equilibria.measure(directory, runs, directory.path.parent / "equilibria")
    return {
        "training": results.Figure(training, draw_training),
        "evaluations": results.Figure(evaluation_rows(found), draw_evaluations),
        "samples": results.Figure(sample_rows(found), draw_samples),
    }


def training_rows(directory):
    """Returns a row for each epoch of each variant that has an equilibrium.

    Numbers are means of the epoch, over seeds; see `_OF_EPOCHS`.
    """
    rows = []
    for name in directory.config.variants:
        histories, _, _ = _measurements(directory, name)
        for epoch, runs in enumerate(zip(*histories, strict=True), start=1):
            row = {"network": name, "epoch": epoch}
            for suffix, (label, _) in _OF_EPOCHS.items():
                values = [_last([run], suffix) for run in runs]
                row[label], row[label + results.DEVIATION] = spread(values)
            if any(row[label] is not None for label, _ in _OF_EPOCHS.values()):
                rows.append(row)
    return rows


def draw_training(rows):
    """Returns a figure of `training_rows` over epochs."""
    panels = [
        results.Panel("epoch", label, _lines(rows, "epoch", label), is_log)
        for label, is_log in _OF_EPOCHS.values()
    ]
    return results.curves([panel for panel in panels if panel.lines])


def evaluation_rows(found):
    """Returns a row for each evaluation: medians over samples, means over seeds."""
    rows = []
    for name, runs in configs.by_variant(found).items():
        medians = [np.nanmedian(run["traces"], axis=0).tolist() for run in runs]
        for evaluation, values in enumerate(zip(*medians, strict=True), start=1):
            mean, deviation = spread(values)
            row = {"network": name, _EVALUATION: evaluation, "residual": mean}
            rows.append({**row, "residual" + results.DEVIATION: deviation})
    return rows


def draw_evaluations(rows):
    """Returns a figure of `evaluation_rows`."""
    lines = _lines(rows, _EVALUATION, "residual")
    return results.curves([results.Panel(_EVALUATION, "residual", lines, is_log=True)])


def sample_rows(found):
    """Returns a row for each sample of each run."""
    return [
        {"network": name, "run": index, _JACOBIAN: jacobian, "residual": residual}
        for name, runs in configs.by_variant(found).items()
        for index, run in enumerate(runs)
        for jacobian, residual in zip(run["jacobians"], run["residuals"], strict=True)
    ]


def draw_samples(rows):
    """Returns a figure of `sample_rows`."""
    points = {}
    for row in rows:
        points.setdefault(row["network"], []).append((row[_JACOBIAN], row["residual"]))
    return results.scatter(_JACOBIAN, "residual", points)


def _lines(rows, x, y):
    """Returns the lines of a panel, without rows that lack a number."""
    lines = {}
    for row in rows:
        if row[y] is not None:
            lines.setdefault(row["network"], []).append(row)
    return {
        name: _columns(
            [row[x] for row in own],
            [(row[y], row[y + results.DEVIATION]) for row in own],
        )
        for name, own in lines.items()
    }


def _add_validation(lines, name, histories, score):
    """Adds the score over time, at the epochs that were validated."""
    column = f"val_{score.name}"
    known = [i for i, row in enumerate(histories[0]) if row.get(column)]
    if not known:
        return
    values = [[float(rows[i][column]) for rows in histories] for i in known]
    minutes = [
        statistics.fmean(
            sum(float(row["seconds"]) for row in rows[: i + 1]) for rows in histories
        )
        / 60
        for i in known
    ]
    lines[name] = _line(minutes, values, score.scale)


def _line(x, values, scale):
    """Returns x, means and deviations of lists of numbers; see `results.Panel`."""
    return _columns(x, [spread([scale * value for value in one]) for one in values])


def _columns(x, spreads):
    """Returns x, means and deviations of pairs; see `results.Panel`."""
    means, deviations = zip(*spreads, strict=True)
    return list(x), list(means), None if None in deviations else list(deviations)
