"""The commands of `deq-keras`. They validate input before they import TensorFlow."""

from pathlib import Path

from .. import registry
from ..config import reading as configs
from ..config import shipped
from ..evaluation.report import report as report_of
from ..evaluation.summary import align
from ..runs.work_directory import WorkDirectory
from .demo_command import demo
from .evaluate_commands import (
    evaluate,
    evaluate_checkpoint,
    evaluate_export,
    evaluate_problems,
    sweep,
)
from .reproduce_command import reproduce
from .selection import only, select

__all__ = [
    "demo",
    "diagnose",
    "doctor",
    "evaluate",
    "evaluate_checkpoint",
    "evaluate_export",
    "evaluate_problems",
    "export",
    "generate",
    "import_checkpoint",
    "list_configs",
    "report",
    "reproduce",
    "sweep",
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
    directory = enter(Path(arguments.work_dir), config)
    from ..runs import distribution, variants

    devices = distribution.start(config.distribution)
    jobs = variants.make_jobs(directory, distribution=devices)
    return variants.run(jobs, directory, arguments.figures)


def diagnose(arguments):
    directory, names = select(arguments.work_dir, arguments.variant)
    from ..evaluation import plots
    from ..runs import variants

    with directory.in_use():
        for name, job, model in variants.load_models(directory, names):
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
    directory, names = select(arguments.work_dir, arguments.variant)
    name = only(names)
    from ..evaluation import tuning
    from ..runs import variants

    with directory.in_use():
        ((_, job, model),) = variants.load_models(directory, [name])
        promise = (arguments.promise, arguments.confidence)
        groups = job.feed.test_inputs(model)
        size = job.config.data.evaluation_batch_size
        tuned = tuning.tune_run(model, groups, promise, size, arguments.group)
        folder = directory.folder(name)
        files = tuning.write(tuned, folder, arguments.figures)
    print(tuned)
    print(f"{', '.join(files)} are in {folder}.")


def export(arguments):
    # Does not lock the work directory, because it only reads.
    directory, names = select(arguments.work_dir, arguments.variant)
    name = only(names)
    from deq_keras.tuning import describe

    from ..conversion.export import CARD, export, export_preset
    from ..data import corruption
    from ..evaluation import tuning
    from ..runs import variants

    ((_, job, model),) = variants.load_models(directory, [name])
    metadata = {}
    if arguments.tuned:
        tuned = tuning.apply(model, directory.folder(name))
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
    with corruption.locating():
        difference = export(
            *job.prepare_export(model),
            arguments.out,
            arguments.format,
            job.config.evaluation.budgets,
            metadata,
        )
    print(
        f"Exported {name} to {arguments.out}. Reloaded, its outputs agree to "
        f"{difference:.1e}."
    )


def generate(arguments):
    """Prints the text that a language model generates. Writes no files."""
    directory, names = select(arguments.work_dir, arguments.variant)
    registry.check_generates(directory.config.experiment)
    name = only(names)
    from ..evaluation import generation
    from ..runs import variants

    ((_, _, model),) = variants.load_models(directory, [name])
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
    print(align(rows + [[name, shipped.subject(name)] for name in shipped.names()], 2))


def doctor(arguments):
    """Prints the facts that a bug report needs."""
    del arguments
    from .. import machine

    for name, text in machine.report():
        print(f"{name:<15} {text}")


def report(arguments):
    directory, names = select(arguments.work_dir)
    if arguments.figures is not None:
        from ..evaluation import plots

        with directory.in_use():
            for name in names:
                plots.draw_run(directory, name, arguments.figures)
            plots.draw_comparison(directory, arguments.figures)
    print(report_of(directory))
