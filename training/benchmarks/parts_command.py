"""The command line of a benchmark of several parts."""

import argparse
import json
import sys
from pathlib import Path

from . import environment, fresh_process
from .timing import QUICK, Effort


class PartsCommand:
    """Measures the chosen parts of a benchmark; prints results and writes JSON.

    Args:
        name: str. As `deq-keras benchmark` knows it.
        description: str, for the help.
        parts: tuple of names.
        measurements: function that returns the function of each part, a dict. Called
            late, since it imports TensorFlow.
    """

    def __init__(self, name, description, parts, measurements):
        self.name = name
        self.description = description
        self.parts = parts
        self.measurements = measurements

    def __call__(self, argv=None):
        """Runs the benchmark and returns the exit status.

        Args:
            argv: list of command-line arguments. `None`: those of the process.
        """
        arguments = self._parser().parse_args(argv)
        results = self.run(arguments.parts, QUICK if arguments.quick else Effort())
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results, indent=1))
        return 0

    def run(self, parts, effort, sizes=None):
        """Measures and returns the results as a JSON-serialisable dict.

        Args:
            parts: names out of `parts`.
            effort: a `timing.Effort`.
            sizes: dict of arguments of each part's function, where they differ from the
                benchmark's.
        """
        results = {"environment": environment.describe()}
        for name in parts:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            measure = self.measurements()[name]
            results[name] = measure(effort, **(sizes or {}).get(name, {}))
        return fresh_process.plain(results)

    def _parser(self):
        parser = argparse.ArgumentParser(
            prog=f"deq-keras benchmark {self.name}", description=self.description
        )
        parser.add_argument(
            "--parts",
            nargs="+",
            choices=self.parts,
            default=self.parts,
            metavar="NAME",
            help=f"which of {', '.join(self.parts)}; default: all",
        )
        parser.add_argument("--out", type=Path, help="JSON file to write")
        parser.add_argument(
            "--quick",
            action="store_true",
            help="two rounds a measurement: shows that it runs, not how fast",
        )
        return parser
