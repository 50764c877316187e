"""The command line of the benchmark."""

import argparse
import json
import sys
from pathlib import Path

from training.benchmarks import environment, fresh_process
from training.benchmarks.timing import QUICK, Effort

PARTS = ("step", "inject", "generation", "memory", "evaluation")


def main(argv=None):
    """Runs the benchmark; prints its results and writes JSON.

    Args:
        argv: list of command-line arguments. `None`: those of the process.

    Returns:
        The exit status, an int.
    """
    arguments = _parser().parse_args(argv)
    results = run(arguments.parts, QUICK if arguments.quick else Effort())
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return 0


def run(parts, effort, sizes=None):
    """Measures and returns the results as a JSON-serialisable dict.

    Args:
        parts: names out of `PARTS`.
        effort: a `timing.Effort`.
        sizes: dict of arguments of each part's `measure`, where they differ from the
            benchmark's.
    """
    results = {"environment": environment.describe()}
    for name in parts:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        measure = _measurements()[name]
        results[name] = measure(effort, **(sizes or {}).get(name, {}))
    return fresh_process.plain(results)


def _measurements():
    # Imports TensorFlow.
    from training.benchmarks.language_model import cells, generation, memory

    return {
        "step": cells.step_costs,
        "inject": cells.injection_costs,
        "generation": generation.token_costs,
        "memory": memory.training_peaks,
        "evaluation": memory.evaluation_peak,
    }


def _parser():
    parser = argparse.ArgumentParser(
        prog="deq-keras benchmark language_model",
        description="Measures a DEQ-Transformer, on a quiet machine.",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        metavar="NAME",
        help=f"which of {', '.join(PARTS)}; default: all",
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds a measurement: shows that it runs, not how fast",
    )
    return parser
