"""The command line of a benchmark of several measurements."""

import argparse
import json
import sys
from pathlib import Path

from . import environment, fresh_process
from .timing import QUICK, Effort


class BenchmarkCommand:
    """Takes the chosen measurements of a benchmark; prints results and writes JSON.

    Args:
        name: str. As `deq-keras benchmark` knows it.
        description: str, for the help.
        names: tuple of the names of the measurements.
        measurements: function that returns the function of each name, a dict. Called
            late, since it imports TensorFlow.
    """

    def __init__(self, name, description, names, measurements):
        self.name = name
        self.description = description
        self.names = names
        self.measurements = measurements

    def __call__(self, argv=None):
        """Runs the benchmark and returns the exit status.

        Args:
            argv: list of command-line arguments. `None`: those of the process.
        """
        arguments = self._parser().parse_args(argv)
        results = self.run(arguments.only, QUICK if arguments.quick else Effort())
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results, indent=1))
        return 0

    def run(self, names, effort, sizes=None):
        """Measures and returns the results as a JSON-serialisable dict.

        Args:
            names: which of `names`.
            effort: a `timing.Effort`.
            sizes: dict of arguments of each measurement's function, where they differ
                from the benchmark's.
        """
        results = {"environment": environment.describe()}
        for name in names:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            measure = self.measurements()[name]
            results[name] = measure(effort, **(sizes or {}).get(name, {}))
        return fresh_process.plain(results)

    def _parser(self):
        parser = argparse.ArgumentParser(
            prog=f"deq-keras benchmark {self.name}", description=self.description
        )
        parser.add_argument(
            "--only",
            "--parts",  # As it was called first.
            dest="only",
            nargs="+",
            choices=self.names,
            default=self.names,
            metavar="NAME",
            help=f"which of {', '.join(self.names)}; default: all",
        )
        parser.add_argument("--out", type=Path, help="JSON file to write")
        parser.add_argument(
            "--quick",
            action="store_true",
            help="two rounds a measurement: shows that it runs, not how fast",
        )
        return parser
