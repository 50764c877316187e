"""The command `deq-keras`. TensorFlow is imported when the input has been validated."""

import argparse
import importlib
import os
import shlex
import sys
from pathlib import Path

from . import registry
from .config import reading as configs
from .errors import InputError, describe
from .evaluation.report import report
from .runs.work_directory import WorkDirectory, is_run

BENCHMARKS = ("input_pipeline", "language_model", "mdeq", "solvers")


def main(argv=None):
    """Runs one command and returns the exit status.

    Args:
        argv: list of strings; `None` takes those of the process.

    Returns:
        0 on success, 2 where the user's input, a file or a folder cannot be used, 1 for
        a run that failed, 130 for one that was interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return arguments.command(arguments) or 0
    except InputError as error:
        return _failed(2, f"error: {error}")
    except OSError as error:
        return _failed(2, f"error: {describe(error)}")
    except FloatingPointError as error:
        return _failed(1, f"failed: {error}")
    except KeyboardInterrupt:
        return _failed(130, f"interrupted. {_how_to_go_on(arguments, argv)}")


def _failed(status, message):
    print(f"deq-keras: {message}", file=sys.stderr)
    return status


def _how_to_go_on(arguments, argv):
    if arguments.command is not _train or not is_run(_work_directory(arguments)):
        return "Nothing has to be undone: run the command again."
    again = argv if arguments.resume else [*argv, "--resume"]
    return f"Go on with: {shlex.join(['deq-keras', *again])}"


def _train(arguments):
    config = configs.load(arguments.config, arguments.overrides)
    enter = WorkDirectory.resume if arguments.resume else WorkDirectory.start
    directory = enter(_work_directory(arguments), config)
    if isinstance(registry.find(config.experiment), registry.Study):
        return registry.implementation(config.experiment)(config, directory)
    from .runs import variants

    return variants.run(variants.make_jobs(directory), directory)


def _evaluate(arguments):
    directory, names = _selected(arguments)
    budgets = _checked_budgets(directory.config, arguments.budgets)
    from .runs import variants

    with directory.in_use():
        for name in names:
            job, model = _trained(directory, name)
            variants.evaluate(job, model, directory.folder(name), budgets)
    return _report(arguments)


def _checked_budgets(config, budgets):
    """What a config may not ask for cannot be asked for beside it."""
    if budgets is not None:
        assignments = [("evaluation.budgets", budgets)]
        try:
            configs.resolve(configs.to_mapping(config), assignments)
        except InputError as error:
            raise InputError(f"--budgets: {error}") from error
    return budgets


def _diagnose(arguments):
    directory, names = _selected(arguments)
    from .runs import variants

    with directory.in_use():
        for name in names:
            job, model = _trained(directory, name)
            if variants.diagnose(job, model, directory.folder(name), name):
                print(f"{name}: residuals.png, residuals.csv, diagnosis.json")
            else:
                print(f"{name}: has no equilibrium to diagnose")
    return _report(arguments)


def _export(arguments):
    # It only reads the work directory, so another process may be at work there.
    directory, names = _selected(arguments)
    if len(names) > 1:
        raise InputError(f"Choose one --variant of {', '.join(names)}.")
    job, model = _trained(directory, names[0])
    from .data.records import damage

    with damage.reported():
        difference = job.export(model, arguments.out)
    print(
        f"Exported {names[0]} to {arguments.out}. Reloaded, its outputs agree to "
        f"{difference:.1e}."
    )


def _trained(directory, name):
    """Returns the job and the trained model of a variant."""
    from .runs import variants

    # First, since it imports the classes that the saved model is made of.
    registry.implementation(directory.config.experiment)
    model = variants.load_trained(directory, name)
    return variants.make_job(directory, name), model


def _import_checkpoint(arguments):
    architecture = dict(configs.parse_override(text) for text in arguments.overrides)
    from .conversion.import_checkpoint import import_checkpoint

    model = import_checkpoint(arguments.checkpoint, arguments.out, architecture)
    print(f"Wrote {arguments.out}: {model.count_params():,} parameters.")


def _benchmark(arguments):
    module = importlib.import_module(f".benchmarks.{arguments.name}", __package__)
    return module.main(arguments.arguments)


def _report(arguments):
    directory, _ = _selected(arguments)
    print(report(directory))


def _selected(arguments):
    """Returns the work directory of the arguments and the names of the variants."""
    directory = WorkDirectory.open(arguments.work_dir)
    registry.check_scored(directory.config.experiment)
    name = getattr(arguments, "variant", None)
    if name is not None:
        configs.variant(directory.config, name)
    return directory, [name] if name else list(directory.config.variants)


def _work_directory(arguments):
    if arguments.work_dir:
        return Path(arguments.work_dir)
    path = Path(arguments.config).resolve()
    return Path("runs") / f"{path.parent.name}-{path.stem}"


def _parser():
    parser = argparse.ArgumentParser(
        prog="deq-keras", description="Trains and examines deep equilibrium models."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_train(commands)
    evaluate = _add(
        commands, "evaluate", _evaluate, "accuracy or loss at budgets of evaluations"
    )
    _add_work_directory(evaluate)
    evaluate.add_argument(
        "--budgets",
        type=_budget,
        nargs="+",
        metavar="NFE",
        help="default: the config's",
    )
    diagnose = _add(commands, "diagnose", _diagnose, "residual curves, spectral radius")
    _add_work_directory(diagnose)
    export = _add(commands, "export", _export, "write a SavedModel and check it")
    _add_work_directory(export)
    export.add_argument("--out", required=True, help="a new folder for the SavedModel")
    _add_import_checkpoint(commands)
    benchmark = _add(commands, "benchmark", _benchmark, "measure the library's speed")
    benchmark.add_argument("name", choices=BENCHMARKS)
    benchmark.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the benchmark"
    )
    table = _add(commands, "report", _report, "print the table of a run")
    table.add_argument("work_dir", help="the work directory of a run")
    return parser


def _add(commands, name, function, description):
    parser = commands.add_parser(name, help=description, description=description)
    parser.set_defaults(command=function)
    return parser


def _add_train(commands):
    train = _add(commands, "train", _train, "train what a config describes")
    train.add_argument(
        "config", help="a YAML file, for example configs/digits/main.yaml"
    )
    train.add_argument(
        "--work-dir",
        metavar="DIR",
        help="new folder for all the run writes (default: runs/<folder>-<config>)",
    )
    train.add_argument(
        "--resume", action="store_true", help="continue the run in the work directory"
    )
    train.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="A.B=C",
        help="replace a value of the config; may be repeated",
    )


def _add_import_checkpoint(commands):
    parser = _add(
        commands,
        "import-checkpoint",
        _import_checkpoint,
        "make a Keras model of the authors' DEQ-Transformer or MDEQ",
    )
    parser.add_argument("checkpoint", help="a state dict: .pth, .pth.tar, .pkl or .npz")
    parser.add_argument("--out", required=True, help="a new .keras file")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="A=B",
        help="what the weights do not tell: mem_len, pre_lnorm, local_size, cutoffs; "
        "downsample_times, num_groups, dropout",
    )


def _add_work_directory(parser):
    parser.add_argument("work_dir", help="the work directory of a finished run")
    parser.add_argument("--variant", metavar="NAME", help="default: all variants")


def _budget(text):
    if not text.isdecimal() or len(text) > 20 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be integers >= 1, not {text[:40]!r}")
    return int(text)
