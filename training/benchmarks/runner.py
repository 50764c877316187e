"""Runs the benchmark of a name, prints its table and writes its JSON."""

import argparse
import importlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .. import machine
from ..evaluation.summary import aligned
from . import MODULES
from .measuring import QUICK, Effort, plain

_HEADER = ("measurement", "median", "quartiles", "time [ms]", "bound", "other numbers")
_SIDES = ("numerator", "denominator")
_QUARTILES = ("lower_quartile", "upper_quartile")
_DURATION = {"median", "rounds", "other_processors"}
_VERDICTS = {True: "met", False: "MISSED", None: "not measurable here"}
_DISTURBED = " *"


class Benchmark(NamedTuple):
    """The measurements of `deq-keras benchmark NAME`.

    Attributes:
        description: String for `--help`.
        measurements: Dict of names to functions. A function takes an `Effort` and
            keyword arguments, and returns a nested dict of `Ratio`, `Duration` and
            numbers. Its keys `bound` and `met` state the library's promises.
        optional: Names that are measured only if `--only` lists them.
        add_arguments: Function that adds options to an `argparse` parser. Their values
            reach the measurements that have a parameter of that name.
    """

    description: str
    measurements: dict
    optional: tuple = ()
    add_arguments: Callable = lambda parser: None


def find(name):
    """Returns the `Benchmark` of a name from `MODULES`."""
    return importlib.import_module(f".{MODULES[name]}", __package__).BENCHMARKS[name]


def main(name, argv=None):
    """Runs one benchmark: prints a table, writes JSON, returns the exit status.

    Args:
        name: String. A key of `MODULES`.
        argv: List of command-line arguments. `None`: the arguments of the process.
    """
    benchmark = find(name)
    options = vars(_parser(name, benchmark).parse_args(argv))
    only, out, quick = (options.pop(key) for key in ("only", "out", "quick"))
    for_each = {
        name: {
            key: options[key]
            for key in inspect.signature(measure).parameters
            if key in options
        }
        for name, measure in benchmark.measurements.items()
    }
    results = run(benchmark, only, QUICK if quick else Effort(), for_each)
    print(table(results), flush=True)
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def run(benchmark, names, effort, options=None):
    """Measures and returns the results as a JSON-serializable dict.

    Args:
        benchmark: `Benchmark`.
        names: Which of its measurements.
        effort: `measuring.Effort`.
        options: Dict of dicts of keyword arguments, by measurement.
    """
    environment = {**machine.environment(), "settings": machine.settings()}
    results = {"environment": environment}
    for name in names:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        measure = benchmark.measurements[name]
        results[name] = measure(effort, **(options or {}).get(name, {}))
    return plain(results)


def _parser(name, benchmark):
    parser = argparse.ArgumentParser(
        prog=f"deq-keras benchmark {name}",
        description=f"{benchmark.description} Needs a quiet machine.",
    )
    measurements = tuple(benchmark.measurements)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=measurements,
        default=tuple(n for n in measurements if n not in benchmark.optional),
        metavar="NAME",
        help=f"which of {', '.join(measurements)}; default: all"
        + "".join(f" but {name}" for name in benchmark.optional),
    )
    parser.add_argument("--out", type=_output_file, help="JSON file to write")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds a measurement: shows that it runs, not how fast",
    )
    benchmark.add_arguments(parser)
    return parser


def _output_file(text):
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"the directory of {text!r} does not exist; create it first"
        )
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a directory; name a file")
    return path


def positive(text):
    """Parses the positive integer of an option."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def table(results):
    """Returns results as text: the environment, a row for each measurement, a note.

    Args:
        results: Dict that `run` returns.
    """
    facts = results["environment"]
    changes = " with uncommitted changes" if facts["uncommitted_changes"] else ""
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if v)
    measured = {name: value for name, value in results.items() if name != "environment"}
    rows = list(_rows((), measured))
    is_used = [any(column) for column in zip(*rows, strict=True)]
    rows = [
        [cell for cell, used in zip(row, is_used, strict=True) if used]
        for row in (_HEADER, *rows)
    ]
    devices = [f"{facts['processor']}, {facts['processors_usable']} processors"]
    devices += [*facts["gpus"], " ".join(facts["instructions"])]
    settings = machine.assignments({**facts["settings"], **facts["variables"]})
    return (
        f"{'; '.join(filter(None, devices))}; {settings}; {versions}; "
        f"commit {facts['commit'] or 'unknown'}{changes}; {facts['time']}\n\n"
        f"{aligned(rows, left=len(rows[0]))}\n\n"
        "Medians are over rounds or pairs of rounds. *: other processes used the "
        "machine meanwhile."
    )


def _rows(path, value):
    """Yields the cells of the rows of a nested result."""
    numbers = {k: v for k, v in value.items() if not isinstance(v, dict)}
    nested = {k: v for k, v in value.items() if isinstance(v, dict)}
    sides = [nested.pop(side) for side in _SIDES if side in nested]
    if _DURATION <= set(numbers):
        sides = [{key: numbers.pop(key) for key in _DURATION}]
    times = " / ".join(_text(side["median"]) for side in sides)
    others = sides[0]["other_processors"] if sides else None
    if others is not None and others > Effort().tolerated:
        times += _DISTURBED
    median = _text(numbers.pop("median")) if "median" in numbers else ""
    quartiles = "–".join(
        _text(numbers.pop(key)) for key in _QUARTILES if key in numbers
    )
    bound = numbers.pop("bound", "")
    if bound:
        bound += f": {_VERDICTS[numbers.pop('met')]}"
    other = ", ".join(f"{name} {_text(number)}" for name, number in numbers.items())
    if median or times or bound or other:
        yield (", ".join(path), median, quartiles, times, bound, other)
    for key, item in nested.items():
        yield from _rows((*path, key), item)


def _text(value):
    if isinstance(value, list):
        return " / ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
