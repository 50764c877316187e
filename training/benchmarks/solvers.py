"""`deq-keras benchmark solvers`: what solving and differentiating costs over f itself.

Every number is a ratio of two times of one run, because times drift between machines
and hours: a forward solve over as many compiled calls of f, a training step over the
calls that it cannot avoid, float32 over mixed_bfloat16. The memory of a training step
is what TensorFlow allocates at its peak, beside a control that must grow. torchdeq goes
through the same where it is installed; its memory is that of fresh processes.
"""

import argparse
import json
import sys
from pathlib import Path

from . import (
    arrays,
    environment,
    fresh_process,
    peer,
    report,
    resident_memory,
)
from . import plan as plans


def main(argv=None):
    """Runs the benchmark; prints tables and writes JSON.

    Args:
        argv: list of command-line arguments. `None`: those of the process.

    Returns:
        The exit status, an int.
    """
    arguments = _parser().parse_args(argv)
    plan = plans.quick() if arguments.quick else plans.Plan()
    plan = plan._replace(with_xla=arguments.xla)
    if arguments.no_memory:
        plan = plan._replace(memory_budgets=())
    results = run(
        plan,
        arguments.workloads,
        peer_python=None if arguments.peer == "none" else arguments.peer_python,
    )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(report.table(results))
    return 0


def run(plan, workloads, peer_python=None, log=None):
    """Measures and returns the results as a JSON-serialisable dict.

    Args:
        plan: a `plan.Plan`.
        workloads: list of names from `arrays.NAMES`.
        peer_python: path of an interpreter for torchdeq, or `None` to leave it out.
        log: function that is told what is measured. Defaults to printing on stderr.
    """
    log = log or _log
    peer_versions = None if peer_python is None else peer.versions(peer_python)
    left_out = _left_out(plan, peer_python, peer_versions)
    facts = environment.describe()
    facts["versions"].update(peer_versions or {})
    results = {
        "environment": facts,
        "plan": plan,
        "workloads": list(workloads),
        "left_out": left_out,
        "deq_keras": _measure_library(plan, workloads, left_out, log),
    }
    if peer.NAME not in left_out:
        results[peer.NAME] = _measure_peer(plan, workloads, left_out, peer_python, log)
    return fresh_process.plain(results)


def _measure_library(plan, workloads, left_out, log):
    from . import library  # imports TensorFlow

    results = {}
    for name in workloads:
        results[name] = library.measure_times(name, plan, left_out, log)
        if "memory" not in left_out:
            results[name] |= library.measure_memory(name, plan, log)
    return results


def _measure_peer(plan, workloads, left_out, python, log):
    results = {}
    for name in workloads:
        log(f"{name}: {peer.NAME}")
        results[name] = peer.measure_times(name, plan, python)
        if "memory" not in left_out and resident_memory.is_available():
            log(f"{name}: memory of {peer.NAME}'s training steps")
            results[name]["memory"] = peer.measure_memory(name, plan, python)
    return results


def _left_out(plan, peer_python, peer_versions):
    """What is not measured, and why."""
    reasons = {}
    if not plan.memory_budgets:
        reasons["memory"] = "not asked for."
    if environment.has_bfloat16() is False:
        reasons["mixed_bfloat16"] = "this processor has no bfloat16 instructions."
    if peer_python is None:
        reasons[peer.NAME] = "not asked for."
    elif peer_versions is None:
        reasons[peer.NAME] = (
            f"{peer_python} cannot import torch and torchdeq; install the extra "
            "`benchmark`, or name another interpreter with --peer-python."
        )
    return reasons


def _parser():
    parser = argparse.ArgumentParser(
        prog="deq-keras benchmark solvers",
        description="Measures solvers and training steps against the cost of f itself, "
        "on a quiet machine.",
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=arrays.NAMES,
        default=arrays.NAMES,
        metavar="NAME",
        help=f"which of {', '.join(arrays.NAMES)}; default: all",
    )
    parser.add_argument("--out", type=_output_file, help="JSON file to write")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds a measurement: shows that it runs, not how fast",
    )
    parser.add_argument("--no-memory", action="store_true", help="leave memory out")
    parser.add_argument("--xla", action="store_true", help="measure XLA as well")
    parser.add_argument(
        "--peer",
        choices=(peer.NAME, "none"),
        default=peer.NAME,
        help="library to measure in the same run, where it is installed",
    )
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter that can import the peer; default: this one",
    )
    return parser


def _output_file(text):
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"the directory of {text!r} does not exist; create it first"
        )
    return path


def _log(message):
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
