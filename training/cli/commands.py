"""The commands of `deq-keras`. They validate input before they import TensorFlow."""

from pathlib import Path

from .. import registry
from ..config import reading as configs
from ..config import shipped
from ..errors import InputError
from ..evaluation.report import report as report_of
from ..evaluation.report import score_table
from ..evaluation.summary import aligned
from ..files import records
from ..runs import cluster
from ..runs.work_directory import WorkDirectory
from .audit_command import audit
from .demo_command import demo
from .reproduce_command import reproduce
from .selection import only, runs_of, selected

__all__ = [
    "audit",
    "demo",
    "diagnose",
    "doctor",
    "evaluate",
    "export",
    "generate",
    "import_checkpoint",
    "list_configs",
    "report",
    "reproduce",
    "train",
    "tune",
]


def train(arguments):
    path = shipped.find(arguments.config)
    config = configs.load(path, arguments.overrides)
    enter = WorkDirectory.resume if arguments.resume else WorkDirectory.start
    if arguments.work_dir is None:
        name = f"{path.resolve().parent.name}-{path.resolve().stem}"
        arguments.work_dir = Path("runs") / name
    path = Path(arguments.work_dir)
    if config.distribution.strategy == "multi_worker":
        # Workers other than the chief have a folder of their own for checkpoints.
        path = cluster.from_environment().folder(path)
    directory = enter(path, config)
    from ..runs import distribution, variants

    devices = distribution.start(config.distribution)
    jobs = variants.make_jobs(directory, distribution=devices)
    return variants.run(jobs, directory, arguments.figures)


def evaluate(arguments):
    _check_evaluated(arguments)
    if arguments.checkpoint is not None:
        return _evaluate_checkpoint(arguments)
    directory, names = _selected(arguments)
    budgets = _checked_budgets(directory.config, arguments.budgets)
    if (arguments.exported or arguments.data) and arguments.figures != "png":
        raise InputError(
            "--exported and --data draw no figures. Leave --format out. "
            f"Received: format={arguments.figures}."
        )
    if arguments.exported is not None:
        return _evaluate_export(arguments.exported, directory, names, budgets)
    if arguments.data is not None:
        return _evaluate_file(arguments.data, directory, names, budgets)
    if arguments.tolerances is not None:
        return _evaluate_tolerances(arguments, directory, names, budgets)
    from ..runs import variants

    with directory.in_use():
        for name, job, model in variants.trained(directory, names):
            variants.evaluate(job, model, directory.folder(name), budgets)
        text = variants.compare(directory, arguments.figures)
    print(text)


def _evaluate_tolerances(arguments, directory, names, budgets):
    """Prints, draws and saves the scores at tolerances."""
    from ..evaluation import plots
    from ..runs import variants

    rows = {}
    with directory.in_use():
        for name, job, model in variants.trained(directory, names):
            if job.equilibrium(model) is None:
                continue
            budget = max(budgets or job.config.evaluation.budgets)
            rows[name] = [
                {"tolerance": tol, **job.evaluate_at_tolerance(model, tol, budget)}
                for tol in sorted(set(arguments.tolerances), reverse=True)
            ]
            records.write_csv(directory.folder(name) / "tolerances.csv", rows[name])
        if not rows:
            raise InputError(
                "--tolerances needs a variant with an equilibrium. Received: "
                f"{', '.join(names)}."
            )
        score = registry.find(directory.config.experiment).score
        path = directory.path / f"tolerances.{arguments.figures}"
        plots.plot_scores(path, rows, score, "tolerance")
    print(score_table(rows, score, at="tolerance"))


def _evaluate_export(path, directory, names, budgets):
    """Prints the table of an exported file, without changing files of the run."""
    name = only(names)
    from ..evaluation.readout import ExportedModel
    from ..runs import variants

    job = variants.make_jobs(directory, [name])[name]
    exported = ExportedModel(path)
    budgets = budgets or job.config.evaluation.budgets
    rows = job.measure(exported.answer(), budgets)
    latencies = exported.latencies(sorted({row["budget"] for row in rows}))
    score = registry.find(directory.config.experiment).score
    print(score_table({name: rows}, score, latencies))


def _evaluate_file(path, directory, names, budgets):
    """Prints the table of a user's problems, without changing files of the run."""
    from ..runs import variants

    rows = {}
    for name, job, model in variants.trained(directory, names):
        chosen = budgets or job.config.evaluation.budgets
        rows[name] = job.evaluate_file(model, path, chosen)
    print(score_table(rows, registry.find(directory.config.experiment).score))


def _check_evaluated(arguments):
    """Raises `InputError` unless there is either a run or a checkpoint and a config."""
    config = getattr(arguments, "config", None)
    if arguments.checkpoint is None:
        if arguments.work_dir is None:
            raise InputError(
                "Name the work directory of a run, or give --checkpoint FILE and "
                "--config CONFIG. Received: neither."
            )
        if config is not None or arguments.overrides:
            raise InputError(
                "--config and --set need --checkpoint: a run has its own config. "
                f"Received: {arguments.work_dir}."
            )
    elif config is None or arguments.work_dir is not None:
        raise InputError(
            "--checkpoint needs --config CONFIG, and no work directory. Received: "
            f"config={config}, work_dir={arguments.work_dir}."
        )
    elif arguments.figures != "png":
        raise InputError(
            "--checkpoint draws no figures. Leave --format out. Received: "
            f"format={arguments.figures}."
        )


def _evaluate_checkpoint(arguments):
    """Prints the table of a checkpoint on the data of a config. Writes no files."""
    config = configs.load(shipped.find(arguments.config), arguments.overrides)
    name = only(runs_of(config, arguments.variant))
    budgets = _checked_budgets(config, arguments.budgets)
    from ..conversion import checkpoint_job
    from ..data import corruption

    run = configs.run_config(config, name)
    with corruption.reported():
        job, model = checkpoint_job.load(arguments.checkpoint, run)
        rows = job.measure_model(model, budgets or run.evaluation.budgets)
    print(score_table({name: rows}, registry.find(config.experiment).score))


def _checked_budgets(config, budgets):
    """Returns the budgets of the command line, each once, checked like a config's."""
    if budgets is not None:
        budgets = sorted(set(budgets))
        assignments = [("evaluation.budgets", budgets)]
        try:
            configs.resolve(configs.to_mapping(config), assignments)
        except InputError as error:
            raise InputError(f"--budgets: {error}") from error
    return budgets


def diagnose(arguments):
    directory, names = _selected(arguments)
    from ..evaluation import plots
    from ..runs import variants

    with directory.in_use():
        for name, job, model in variants.trained(directory, names):
            if variants.diagnose(job, model, directory.folder(name)):
                plots.draw_run(directory, name, arguments.figures)
                figure = f"residuals.{arguments.figures}"
                print(f"{name}: {figure}, residuals.csv, diagnosis.json")
            else:
                print(
                    f"{name}: an explicit network, without an equilibrium to diagnose"
                )
        text = variants.compare(directory, arguments.figures)
    print(text)


def tune(arguments):
    """Prints the table of the chosen solver; writes it and a figure into the run."""
    directory, names = _selected(arguments)
    name = only(names)
    from ..evaluation import tuning
    from ..runs import variants

    with directory.in_use():
        ((_, job, model),) = variants.trained(directory, [name])
        promise = (arguments.promise, arguments.confidence)
        tuned = tuning.tune_run(job, model, promise, arguments.group)
        folder = directory.folder(name)
        files = tuning.write(tuned, folder, arguments.figures)
    print(tuned)
    print(f"{', '.join(files)} are in {folder}.")


def export(arguments):
    # Does not lock the work directory, because it only reads.
    directory, names = _selected(arguments)
    name = only(names)
    from deq_keras.tuning import describe

    from ..conversion.export import CARD, export, export_preset
    from ..data import corruption
    from ..evaluation import tuning
    from ..runs import variants

    ((_, job, model),) = variants.trained(directory, [name])
    metadata = {}
    if arguments.tuned:
        tuned = tuning.apply(job, model, directory.folder(name))
        solver = describe(tuned.solver)
        print(f"{solver}, tuned on {tuned.date}. {tuned.verdict}")
        metadata["tuning"] = tuned.as_dict()
    if arguments.format == "preset":
        # The model of a language run is a task with its loss.
        model = getattr(model, "causal_lm", model)
        size = export_preset(directory, name, model, arguments.out)
        print(
            f"Exported {name} to {arguments.out}, {size / 1e6:.1f} MB; {CARD} is its "
            f"model card. Load it with {type(model).__name__}.from_preset("
            f"{str(arguments.out)!r})."
        )
        return
    with corruption.reported():
        difference = export(job, model, arguments.out, arguments.format, metadata)
    print(
        f"Exported {name} to {arguments.out}. Reloaded, its outputs agree to "
        f"{difference:.1e}."
    )


def generate(arguments):
    """Prints the text that a language model generates. Writes no files."""
    directory, names = _selected(arguments)
    registry.check_generates(directory.config.experiment)
    name = only(names)
    from ..evaluation import generation
    from ..runs import variants

    ((_, _, model),) = variants.trained(directory, [name])
    text = generation.generate(
        model.causal_lm,
        arguments.prompt,
        arguments.max_length,
        arguments.temperature,
        arguments.top_k,
        arguments.seed,
    )
    print(text)


def import_checkpoint(arguments):
    architecture = dict(configs.parse_override(text) for text in arguments.overrides)
    from ..conversion import import_checkpoint as conversion

    path = arguments.checkpoint
    model = conversion.import_checkpoint(path, arguments.out, architecture)
    print(f"Wrote {arguments.out}: {model.count_params():,} parameters.")


def list_configs(arguments):
    """Prints the shipped configs, which `train` accepts by name."""
    del arguments
    rows = [["name", "subject"]]
    print(
        aligned(rows + [[name, shipped.subject(name)] for name in shipped.names()], 2)
    )


def doctor(arguments):
    """Prints the facts that a bug report needs."""
    del arguments
    from .. import machine

    for name, text in machine.report():
        print(f"{name:<15} {text}")


def report(arguments):
    directory, names = _selected(arguments)
    if arguments.figures is not None:
        from ..evaluation import plots

        with directory.in_use():
            for name in names:
                plots.draw_run(directory, name, arguments.figures)
            plots.draw_comparison(directory, arguments.figures)
    print(report_of(directory))


def _selected(arguments):
    """Returns the work directory of the arguments and the names of the variants."""
    return selected(arguments.work_dir, getattr(arguments, "variant", None))
