"""The commands that measure scores: of runs, files and checkpoints."""

from .. import registry
from ..config import reading as configs
from ..config import shipped
from ..errors import InputError
from ..evaluation.report import score_table
from ..files import records
from .selection import only, runs_of, select


def evaluate(arguments):
    """Measures runs at budgets. Writes the results and the report of the run."""
    directory, names = select(arguments.work_dir, arguments.variant)
    budgets = _check_budgets(directory.config, arguments.budgets)
    from ..runs import variants

    with directory.in_use():
        for name, job, model in variants.load_models(directory, names):
            variants.evaluate(job, model, directory.folder(name), budgets)
        text = variants.compare(directory, arguments.figures)
    print(text)


def sweep(arguments):
    """Prints, draws and saves the scores of runs at tolerances of the solver."""
    directory, names = select(arguments.work_dir, arguments.variant)
    given = arguments.max_iter and [arguments.max_iter]
    _check_budgets(directory.config, given, "--max-iter")
    from ..evaluation import plots
    from ..evaluation.budgets import equilibrium
    from ..runs import variants

    rows = {}
    with directory.in_use():
        for name, job, model in variants.load_models(directory, names):
            if equilibrium(model) is None:
                continue
            budget = arguments.max_iter or max(job.config.evaluation.budgets)
            rows[name] = [
                {"tolerance": tol, **job.measure_model(model, [budget], tol=tol)[0]}
                for tol in sorted(set(arguments.tolerances), reverse=True)
            ]
            records.write_csv(directory.folder(name) / "tolerances.csv", rows[name])
        if not rows:
            raise InputError(
                "`sweep` needs a variant with an equilibrium. Received: "
                f"{', '.join(names)}."
            )
        score = registry.find(directory.config.experiment).score
        path = directory.path / f"tolerances.{arguments.figures}"
        plots.plot_scores(path, rows, score, "tolerance")
    print(score_table(rows, score, at="tolerance"))


def evaluate_export(arguments):
    """Prints the scores and latencies of an exported file on the data of a run."""
    directory, names = select(arguments.work_dir, arguments.variant)
    name = only(names)
    budgets = _check_budgets(directory.config, arguments.budgets)
    from ..evaluation.exported import ExportedFile
    from ..runs import variants

    job = variants.make_jobs(directory, [name])[name]
    exported = ExportedFile(arguments.file)
    rows = job.measure(exported.predict, budgets or job.config.evaluation.budgets)
    latencies = exported.latencies(sorted({row["budget"] for row in rows}))
    score = registry.find(directory.config.experiment).score
    print(score_table({name: rows}, score, latencies))


def evaluate_problems(arguments):
    """Prints the scores of runs on the problems of a user's file."""
    directory, names = select(arguments.work_dir, arguments.variant)
    budgets = _check_budgets(directory.config, arguments.budgets)
    from ..runs import variants

    rows = {}
    for name, job, model in variants.load_models(directory, names):
        problems = job.feed.read_problems(arguments.file)
        chosen = budgets or job.config.evaluation.budgets
        rows[name] = job.measure_model(model, chosen, problems)
    print(score_table(rows, registry.find(directory.config.experiment).score))


def evaluate_checkpoint(arguments):
    """Prints the scores of a checkpoint on the data of a config. Writes no files."""
    config = configs.load(shipped.find(arguments.config), arguments.overrides)
    name = only(runs_of(config, arguments.variant))
    budgets = _check_budgets(config, arguments.budgets)
    from ..conversion import checkpoint_job
    from ..data import corruption

    run = configs.run_config(config, name)
    with corruption.locating():
        job, model = checkpoint_job.load(arguments.file, run)
        rows = job.measure_model(model, budgets or run.evaluation.budgets)
    print(score_table({name: rows}, registry.find(config.experiment).score))


def _check_budgets(config, budgets, option="--budgets"):
    """Returns the budgets of the command line, each once, checked like a config's."""
    if budgets is not None:
        budgets = sorted(set(budgets))
        assignments = [("evaluation.budgets", budgets)]
        try:
            configs.resolve(configs.to_mapping(config), assignments)
        except InputError as error:
            raise InputError(f"{option}: {error}") from error
    return budgets
