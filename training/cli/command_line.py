"""The command line `deq-keras`: parses arguments and runs a command."""

import argparse
import importlib.util
import math
import re
import shlex
import sys
from pathlib import Path

from ..config.errors import closest
from ..errors import InputError, describe
from . import notices
from .demo_command import DEMOS, PROMPT, SIZE
from .extras import MissingPackage, explaining_missing
from .reproduce_command import EXPERIMENTS, MEASUREMENTS

FORMATS = ("saved_model", "litert", "onnx", "preset")
FIGURES = ("png", "svg", "pdf")
SEEDS = (0, 2**31 - 1)


def main(argv=None):
    """Runs one command and returns the exit status.

    Args:
        argv: List of strings. Defaults to `None`, the arguments of the process.

    Returns:
        Integer. 0 on success, 1 if a run failed, 2 if the user's input, a file or a
        folder cannot be used, and 130 if a run was interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    arguments = parser().parse_args(argv)
    notices.hide()
    if hasattr(sys.stdout, "reconfigure"):
        # Texts and mazes may have characters that the encoding of the output lacks.
        sys.stdout.reconfigure(errors="replace")
    try:
        with explaining_missing():
            from . import commands

            return getattr(commands, arguments.command)(arguments) or 0
    except (InputError, MissingPackage) as error:
        return _fail(2, f"error: {error}")
    except OSError as error:
        return _fail(2, f"error: {describe(error)}")
    except FloatingPointError as error:
        return _fail(1, f"failed: {error}")
    except KeyboardInterrupt:
        return _fail(130, f"interrupted. {_how_to_go_on(arguments, argv)}")


def _fail(status, message):
    print(f"deq-keras: {message}", file=sys.stderr)
    return status


def _how_to_go_on(arguments, argv):
    from ..runs.work_directory import is_run

    path = getattr(arguments, "work_dir", None)
    if arguments.command != "train" or path is None or not is_run(path):
        return "Nothing has to be undone: run the command again."
    again = argv if arguments.resume else [*argv, "--resume"]
    return f"Go on with: {shlex.join(['deq-keras', *again])}"


class _Parser(argparse.ArgumentParser):
    """A parser that names the nearest choice if a command or a value is misspelled."""

    def _check_value(self, action, value):
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += closest(value, action.choices)
            raise


def version():
    """Returns `deq_keras.__version__` without importing the package and TensorFlow."""
    source = Path(importlib.util.find_spec("deq_keras").origin).read_text("utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]


def parser():
    """Returns the parser of the command line, which sets `command`."""
    parser = _Parser(
        prog="deq-keras", description="Trains and examines deep equilibrium models."
    )
    parser.add_argument("--version", action="version", version=f"deq-keras {version()}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name, description, *options):
        parser = commands.add_parser(name, help=description, description=description)
        parser.set_defaults(command=name.replace("-", "_"))
        for add_option in options:
            add_option(parser)
        return parser

    # === Training and its measurements ===

    train = add("train", "train what a config describes", _figures)
    train.add_argument(
        "config", help="a YAML file, or a shipped config, such as residual/digits"
    )
    train.add_argument(
        "--work-dir",
        metavar="DIR",
        help="new folder for all the run writes (default: runs/<folder>-<config>)",
    )
    train.add_argument(
        "--resume", action="store_true", help="continue the run in the work directory"
    )
    _overrides(train, "replace a value of the config; may be repeated")
    add(
        "evaluate",
        "accuracy or loss at budgets of evaluations",
        _runs,
        _budgets,
        _figures,
    )
    sweep = add("sweep", "the same score at tolerances of the solver", _runs, _figures)
    sweep.add_argument(
        "--tolerances", type=_positive, nargs="+", metavar="TOL", required=True
    )
    sweep.add_argument(
        "--max-iter",
        type=_integer(1),
        metavar="NFE",
        help="budget of the solves (default: the largest of the config)",
    )
    export = add(
        "evaluate-export",
        "scores and latencies of a file that export wrote",
        _one_run,
        _budgets,
    )
    export.add_argument("file", metavar="FILE", help="the exported file or folder")
    problems = add(
        "evaluate-problems", "scores on your own mazes or Sudokus", _runs, _budgets
    )
    problems.add_argument("file", metavar="FILE", help="a text file with the problems")
    checkpoint = add(
        "evaluate-checkpoint", "scores of a checkpoint on data of a config", _budgets
    )
    checkpoint.add_argument(
        "file",
        metavar="FILE",
        help="a state dict of the authors' code, or a .keras file",
    )
    checkpoint.add_argument("config", help="a YAML file, or a shipped config")
    checkpoint.add_argument(
        "--variant",
        metavar="NAME",
        help="variant of the config (default: the only one)",
    )
    _overrides(checkpoint, "replace a value of the config; may be repeated")
    add("diagnose", "residual curves, spectral radius", _runs, _figures)

    # === The trained model ===

    tune = add(
        "tune",
        "find the cheapest solver that keeps the predictions of a model",
        _one_run,
        _figures,
    )
    tune.add_argument(
        "--promise",
        type=_fraction,
        default=0.002,
        metavar="P",
        help="largest fraction of predictions that may change (default: 0.002)",
    )
    tune.add_argument(
        "--confidence",
        type=_fraction,
        default=0.95,
        metavar="C",
        help="confidence of the promise (default: 0.95)",
    )
    tune.add_argument(
        "--group",
        metavar="LABEL",
        help="group of test examples, for example 'level 9' (default: the only one)",
    )
    generate = add("generate", "continue a text with a language model", _one_run)
    generate.add_argument(
        "--prompt", metavar="TEXT", required=True, help="the beginning of the text"
    )
    generate.add_argument(
        "--max-length",
        type=_integer(2, 2**16),
        default=200,
        metavar="N",
        help="tokens of the prompt and the generated text together (default: 200)",
    )
    generate.add_argument(
        "--temperature",
        type=_positive,
        default=1.0,
        metavar="T",
        help="above 1 for more diverse texts, below for likelier ones (default: 1)",
    )
    generate.add_argument(
        "--top-k",
        type=_integer(1),
        default=5,
        metavar="K",
        help="draw from the K most likely tokens; 1 always takes the most likely one "
        "(default: 5)",
    )
    generate.add_argument(
        "--seed",
        type=_integer(*SEEDS),
        default=0,
        help="seed of the draws; the same seed repeats the text (default: 0)",
    )
    export = add("export", "write a file for a server, and check it", _runs)
    export.add_argument(
        "--out",
        required=True,
        help="a new path; files end in .tflite (litert) or .onnx (onnx)",
    )
    export.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help=f"default: {FORMATS[0]}"
    )
    export.add_argument(
        "--tuned", action="store_true", help="with the solver that `tune` chose"
    )

    # === Without a run ===

    checkpoint = add(
        "import-checkpoint", "make a Keras model of a published checkpoint"
    )
    checkpoint.add_argument(
        "checkpoint", help="a state dict: .pth, .pth.tar, .pkl or .npz"
    )
    checkpoint.add_argument("--out", required=True, help="a new .keras file")
    _overrides(
        checkpoint,
        "settings that the weights lack: mem_len, pre_lnorm, local_size, cutoffs; "
        "downsample_times, num_groups, dropout",
        metavar="A=B",
    )
    demo = add("demo", "watch a trained model of the package")
    demo.add_argument(
        "name",
        choices=DEMOS,
        help="; ".join(f"{name} {text}" for name, text in DEMOS.items()),
    )
    demo.add_argument(
        "image", nargs="?", metavar="FILE", help="the same as --file FILE"
    )
    demo.add_argument(
        "--file",
        metavar="FILE",
        help="the first maze or Sudoku of this text file, or an image for deblur",
    )
    demo.add_argument(
        "--size",
        type=_integer(5, 101),
        metavar="N",
        help=f"size of the maze, an odd number (default: {SIZE})",
    )
    demo.add_argument(
        "--seed",
        type=_integer(*SEEDS),
        help="seed of the maze, the Sudoku, the noise or the text (default: 0)",
    )
    demo.add_argument(
        "--prompt",
        metavar="TEXT",
        help=f"the beginning of the text (default: {PROMPT!r})",
    )
    demo.add_argument(
        "--out", metavar="FILE", help="a new picture (default: in this folder)"
    )
    reproduce = add("reproduce", "run an experiment of the papers, or list them")
    reproduce.add_argument(
        "name",
        nargs="?",
        choices=[*EXPERIMENTS, *MEASUREMENTS],
        help="default: list the experiments",
    )
    reproduce.add_argument(
        "--quick",
        action="store_true",
        help="at a size that takes minutes: shows that it runs",
    )
    _overrides(
        reproduce, "replace a value of the config, such as data.path; may be repeated"
    )
    reproduce.add_argument(
        "--work-dir",
        metavar="DIR",
        help="a new folder, or the folder of an interrupted command, which is "
        "continued (default: runs/reproduce-NAME)",
    )
    configs = add("configs", "list the configs of the package")
    configs.set_defaults(command="list_configs")
    add("doctor", "print the machine, the versions and a self-test")
    report = add("report", "print the table of a run")
    report.add_argument("work_dir", help="the work directory of a run")
    _figures(report, None)
    return parser


def _runs(parser, default="all variants"):
    parser.add_argument("work_dir", help="the work directory of a finished run")
    parser.add_argument("--variant", metavar="NAME", help=f"default: {default}")


def _one_run(parser):
    _runs(parser, "the only one")


def _budgets(parser):
    parser.add_argument(
        "--budgets",
        type=_integer(1),
        nargs="+",
        metavar="NFE",
        help="default: the config's",
    )


def _overrides(parser, text, metavar="A.B=C"):
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar=metavar,
        help=text,
    )


def _figures(parser, default=FIGURES[0]):
    parser.add_argument(
        "--format",
        dest="figures",
        choices=FIGURES,
        default=default,
        help=f"file format of figures (default: {default or 'draw none'})",
    )


def _integer(minimum, maximum=None):
    """Returns the type of an argument that is an integer in a range."""
    limits = f">= {minimum}" + ("" if maximum is None else f" and <= {maximum}")

    def parse(text):
        # Python refuses to read more than 4300 digits.
        number = int(text) if text.isdecimal() and len(text) <= 20 else -1
        if number < minimum or (maximum is not None and number > maximum):
            raise argparse.ArgumentTypeError(
                f"must be an integer {limits}, not {text[:40]!r}"
            )
        return number

    return parse


def _positive(text):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number > 0, not {text[:40]!r}")
    return number


def _fraction(text):
    number = _positive(text)
    if number >= 1:
        raise argparse.ArgumentTypeError(f"must be a number < 1, not {text[:40]!r}")
    return number
