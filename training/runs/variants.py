"""Trains, measures and compares the runs of a config: of each variant and seed."""

import functools

from .. import registry
from ..config.reading import by_variant, run_config, run_names, variant_of
from ..data import corruption
from ..errors import InputError
from ..evaluation import report
from ..evaluation.budgets import equilibrium, split
from ..evaluation.diagnose import Diagnosis
from ..evaluation.plots import draw_comparison, draw_run
from ..files import records, saved_model
from ..files.atomic_file import write_text
from .checkpoint import share_compiled
from .train import REMEDY, check, train


def run(jobs, directory, figures="png"):
    """Trains, measures and compares all runs; prints and saves the report.

    Nothing is written before all variants have been checked.

    Args:
        jobs: Dict of names of runs to their `Job`s.
        directory: Their `WorkDirectory`. Finished parts in it are not repeated.
        figures: String. Format of the figures, `"png"`, `"svg"` or `"pdf"`.

    Raises:
        InputError: If the config of a variant is invalid.
    """
    # Reports an error of the last variant before the first is trained.
    variants, traced = {variant_of(name): job for name, job in jobs.items()}, set()
    for name, job in variants.items():
        try:
            check(job, traced)
        except InputError as error:
            place = f"variant `{name}`: " if len(variants) > 1 else ""
            raise InputError(f"{place}{error}") from error
    with directory.in_use():
        for names in by_variant({name: name for name in jobs}).values():
            with share_compiled([jobs[name] for name in names]):
                for name in names:
                    _finish(jobs[name], directory, name, figures)
        text = compare(directory, figures)
        print(f"\n{text}\n\nModels, figures and tables are in {directory.path}.")


def make_jobs(directory, names=None, distribution=None):
    """Returns the jobs of runs, as `run` takes them.

    Imports the modules of the config first, because saved models may contain their
    classes. Jobs whose `data` are the same load them once, at the first use.

    Args:
        directory: their `WorkDirectory`.
        names: List of strings. Names of runs. Defaults to `None`: all runs.
        distribution: the distribution of their training; `None` for one device.
    """
    registry.import_modules(directory.config.imports, "`imports`:")
    job = registry.implementation(directory.config.experiment)
    # Configs cannot be keys of a dict: they contain lists.
    loaders, jobs = [], {}
    for name in names or run_names(directory.config):
        config, folder = run_config(directory.config, name), directory.folder(name)
        load = next((load for known, load in loaders if known == config.data), None)
        if load is None:
            load = functools.cache(
                functools.partial(job.load_data, config.data, folder)
            )
            loaders.append((config.data, load))
        jobs[name] = job(config, load, folder, distribution)
    return jobs


def _finish(job, directory, name, figures):
    """Trains, measures and draws one run. Skips finished parts."""
    folder = directory.run(name)
    print(f"{name}: training in {folder}", flush=True)
    job.feed.save()
    model, _ = train(job, folder)
    if not (folder / records.EVALUATION).exists():
        evaluate(job, model, folder)
    if not (folder / records.DIAGNOSIS).exists():
        diagnose(job, model, folder)
    draw_run(directory, name, figures)


def compare(directory, figures):
    """Draws the figures that compare runs, and writes the report. Returns its text."""
    draw_comparison(directory, figures)
    text = report.report(directory)
    write_text(directory.path / "report.txt", text + "\n")
    return text


def evaluate(job, model, folder, budgets=None):
    """Measures and saves the score of a model at budgets; by default the config's."""
    budgets = budgets or job.config.evaluation.budgets
    with corruption.locating():
        result = {"parameters": model.count_params(), **job.evaluate(model, budgets)}
    # Written last: this file marks a finished evaluation.
    records.write_json(folder / records.EVALUATION, result)


def diagnose(job, model, folder):
    """Measures and saves residual curves and spectral radius, if there is a DEQ.

    Returns:
        Boolean. Whether the model has a DEQ.
    """
    if equilibrium(model) is None:
        return False
    with corruption.locating():
        parts, max_iter = split(model), job.config.evaluation.max_iter
        diagnosis = job.compiled.once(
            model, "diagnosis", lambda: Diagnosis(parts.layer, parts.encode, max_iter)
        )
        result = diagnosis.of(job.feed.batch_samples(model))
    records.write_csv(folder / "residuals.csv", result["residual_quantiles"])
    # Written last: this file marks a finished diagnosis.
    records.write_json(folder / records.DIAGNOSIS, result)
    return True


def load_models(directory, names):
    """Returns a generator of the name, the job and the saved model of runs.

    Raises:
        InputError: if one has not been trained to its end, or a file is damaged.
    """
    # Loads no data, but imports the classes that the saved models are made of.
    jobs = make_jobs(directory, names)
    paths = {name: directory.folder(name) / records.MODEL for name in names}
    for path in paths.values():
        if not path.exists():
            raise InputError(
                f"There is no {path}. Finish the training first: deq-keras train "
                f"CONFIG --resume --work-dir {directory.path}."
            )
    return ((name, jobs[name], saved_model.load(paths[name], REMEDY)) for name in names)
