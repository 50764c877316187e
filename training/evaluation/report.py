"""The tables of a run, from the files in its folder. Does not import TensorFlow."""

from .. import registry
from ..config.reading import (
    by_variant,
    run_names,
    variant,
    variant_names,
    variant_of,
)
from ..files import records
from .summary import align, at_budgets, mean_text


def report(directory):
    """Returns a text that compares the variants of a work directory.

    Args:
        directory: `WorkDirectory` of a finished or unfinished experiment.
    """
    score = registry.find(directory.config.experiment).score
    rows, diagnoses = measurements(directory)
    sections = [*_normalizations(directory.config), _progress(directory, score)]
    if rows:
        # Papers measure on test data.
        part = getattr(directory.config.data, "part", "test")
        published = directory.config.published if part == "test" else None
        score = score._replace(label=score.label.replace("test", part, 1))
        sections.append(score_table(rows, score, published=published))
    if diagnoses:
        sections.append(_diagnosis_table(diagnoses))
    further = registry.tables(directory)
    if further is not None:
        sections.append(further)
    return "\n\n".join(sections)


def measurements(directory):
    """Returns two dicts of the measurements so far: from runs to the rows of their
    evaluation, and from runs to their diagnosis."""
    results = evaluations(directory)
    rows = {name: result["budgets"] for name, result in results.items()}
    diagnoses = read_runs(
        directory, records.DIAGNOSIS, "diagnose", records.read_diagnosis
    )
    return rows, diagnoses


def evaluations(directory):
    """Returns a dict from runs to their evaluation so far, the contents of its file."""
    score = registry.find(directory.config.experiment).score.name

    def read(path, remedy):
        return records.read_evaluation(path, score, remedy)

    return read_runs(directory, records.EVALUATION, "evaluate", read)


def histories(directory):
    """Returns a dict from runs to their history so far, a list of dicts of strings."""
    return {
        name: _history(directory, folder)
        for name, folder in _folders(directory).items()
    }


def _normalizations(config):
    """Returns how variants normalize their images: one sentence, or several."""
    data = [variant(config, name).data for name in variant_names(config)]
    return {one.normalization: None for one in data if hasattr(one, "normalization")}


def _progress(directory, score):
    config, results = directory.config, evaluations(directory)
    totals = {
        name: _length(variant(config, name).phases) for name in variant_names(config)
    }
    validation = f"validation {score.heading}"
    rows = [["", "epochs", "training time [s]", validation, "weights"]]
    folders = _folders(directory)
    for name, history in histories(directory).items():
        seconds = sum(float(row["seconds"]) for row in history)
        values = [row.get(f"val_{score.name}") for row in history]
        known = [float(value) for value in values if value]
        last = score.text(known[-1]) if known else "-"
        weights = "-"
        if name in results:
            weights = f"{results[name]['parameters']:,}"
        total = totals[variant_of(name)]
        if not isinstance(total, int) and (folders[name] / records.MODEL).exists():
            total = len(history)  # The data determine the epochs of phases in steps.
        epochs = f"{len(history)} / {total}"
        rows.append([name, epochs, f"{seconds:.1f}", last, weights])
    return align(rows)


def _length(phases):
    """Returns the epochs of phases; a text if a phase has steps instead."""
    epochs = sum(phase.epochs or 0 for phase in phases)
    steps = sum(phase.steps or 0 for phase in phases)
    parts = [f"{epochs} epochs"] if epochs else []
    return f"- ({' + '.join([*parts, f'{steps:,} steps'])})" if steps else epochs


def score_table(rows, score, latencies=None, at="budget", published=None):
    """Returns the table of scores and residuals at all budgets, one line per variant.

    Args:
        rows: Dict from runs to the rows of their evaluation.
        score: `Score` of the experiment.
        latencies: Optional `Latencies` at the same budgets. Defaults to `None`.
        at: String. `"budget"` or `"tolerance"`, the key of the varied number in rows.
            With tolerances, the table has the mean number of evaluations as well.
            Defaults to `"budget"`.
        published: Optional dict from headings to dicts from variants to the numbers of
            a paper, which are columns beside the scores. Defaults to `None`.
    """
    published = published or {}
    budgets = sorted({row[at] for run in rows.values() for row in run})
    numbers, where, tables = [score, ("residual", "residual", 1, ".2g")], "NFE", []
    if at == "tolerance":
        where = at
        numbers.append(("evaluations", "mean NFE", 1, ".1f"))
    for key, label, scale, digits in numbers:
        headings = [f"published {name}" for name in published]
        columns = list(published.values())
        if key != score.name:
            headings, columns = [""] * len(published), [{}] * len(published)
        table = [[f"{label} at {where}", *map(str, budgets), *headings]]
        for name, runs in by_variant(rows).items():
            values = at_budgets(runs, key, at)
            cells = [mean_text(values.get(b, ()), digits, scale) for b in budgets]
            cells += [str(column.get(name, "")) for column in columns]
            table.append([name, *cells])
        tables += table
    if latencies is None:
        return align(tables)
    tables.append(["latency [ms] at NFE", *map(str, budgets)])
    for index, label in enumerate(("median", "95th percentile")):
        values = [1000 * latencies.quantiles[budget][index] for budget in budgets]
        tables.append([label, *(f"{value:.3g}" for value in values)])
    return (
        f"{align(tables)}\nLatencies of {latencies.num_requests} requests per "
        f"budget, of {latencies.num_samples} samples each."
    )


def _diagnosis_table(diagnoses):
    heading = ["", "mean NFE", "residual", "converged", "spectral radius", "(90 %)"]
    rows = [[*heading, "radius found"]]
    for name, runs in by_variant(diagnoses).items():
        cells = [
            mean_text([run[key] for run in runs], form)
            for key, form in (("evaluations", ".1f"), ("residual", ".2g"))
        ]
        converged = mean_text([run["converged"] for run in runs], ".0%")
        radii = _radius_cells([run["spectral_radius"] for run in runs])
        rows.append([name, *cells, converged, *radii])
    budget = len(next(iter(diagnoses.values()))["residual_quantiles"])
    note = f"Means of solves to the trained tolerance, at most {budget} evaluations:"
    table = f"{note}\n{align(rows)}"
    if "~" in table:
        table += (
            "\n~: without the radius of some samples, or with a poor estimate of it."
        )
    return table


def _radius_cells(radii):
    """Returns the mean, the 90 % quantile, and the fraction of reliable estimates,
    averaged over runs. If not all estimates are reliable, the numbers are marked."""
    shares = [radius["converged"] for radius in radii]
    mark = "" if set(shares) == {1} else "~"
    cells = [
        mean_text([radius[name] for radius in radii], ".3f") for name in ("mean", "q90")
    ]
    return [
        *(cell if cell == "-" else mark + cell for cell in cells),
        mean_text(shares, ".0%"),
    ]


def _folders(directory):
    return {name: directory.path / name for name in run_names(directory.config)}


def _history(directory, folder):
    file = folder / records.HISTORY
    if not file.exists():
        return []
    return records.read_history(
        file,
        "It is written again from the checkpoint by deq-keras train CONFIG --resume "
        f"--work-dir {directory.path}.",
    )


def read_runs(directory, file_name, command, read):
    """Returns a dict from runs to the contents of a file, without missing files.

    Args:
        directory: The `WorkDirectory`.
        file_name: String. Name of the file in the folder of a run.
        command: String. The command of `deq-keras` that writes the file.
        read: Function from a path and a remedy for a corrupt file to its contents.
    """
    files = {name: folder / file_name for name, folder in _folders(directory).items()}
    return {
        name: read(
            file,
            f"It is measured again by deq-keras {command} {directory.path} --variant "
            f"{name}.",
        )
        for name, file in files.items()
        if file.exists()
    }
