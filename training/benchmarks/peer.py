"""Runs the measurements of torchdeq, where it is installed."""

import json
import subprocess

from . import fresh_process

NAME = "torchdeq"
_MODULE = "torchdeq_peer"
_METHODS = ("fixed_point_iteration", "anderson", "broyden", "unrolled")


def versions(python):
    """Returns the versions of torch and torchdeq that an interpreter can import, or
    `None` where it cannot.

    Args:
        python: path of the interpreter.
    """
    source = (
        "import importlib.metadata, json, torch, torchdeq\n"
        "names = 'torch', 'torchdeq'\n"
        "print(json.dumps({n: importlib.metadata.version(n) for n in names}))"
    )
    try:
        process = subprocess.run([python, "-c", source], capture_output=True, text=True)
    except OSError:
        return None
    return json.loads(process.stdout) if process.returncode == 0 else None


def measure_times(name, plan, python):
    """Returns all wall times of torchdeq on one workload, as a dict.

    Args:
        name: one of `arrays.NAMES`.
        plan: a `Plan`.
        python: path of an interpreter that can import torchdeq.
    """
    return _ask(
        python,
        task="measure",
        workload=name,
        budgets=plan.solve_budgets,
        step_budget=plan.step_budget,
        effort=plan.effort,
        sizes=plan.sizes,
    )


def measure_memory(name, plan, python):
    """Returns the peak memory of torchdeq's training steps, in MiB, by solver and
    budget."""

    def peak(method, budget):
        return _ask(
            python,
            task="peak_memory",
            workload=name,
            name=method,
            num_evaluations=budget,
            sizes=plan.sizes,
        )

    return {
        method: {budget: peak(method, budget) for budget in plan.memory_budgets}
        for method in _METHODS
    }


def _ask(python, **request):
    return fresh_process.run_without_library(_MODULE, request, python)
