"""Runs a module of this package in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def run(module, request):
    """Returns the answer of a module of this package, run by this interpreter.

    Args:
        module: str. Its name within the package. It calls `answer` when run.
        request: JSON-serialisable object.

    Raises:
        RuntimeError: if the process fails, with the end of what it wrote.
    """
    # It sees what this process sees, wherever the package lies.
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    command = [sys.executable, "-m", f"{__package__}.{module}", json.dumps(request)]
    return _answer_of(command, {**os.environ, "PYTHONPATH": path})


def run_without_library(module, request, python):
    """Returns the answer of a module that imports nothing of `deq_keras`, run by an
    interpreter which need not have it.

    Args:
        module: see `run`.
        request: JSON-serialisable object.
        python: path of the interpreter.

    Raises:
        RuntimeError: if the process fails, with the end of what it wrote.
    """
    # Last in the path: where we are installed, the library lies beside `training`.
    source = (
        f"import runpy, sys; sys.path.append({str(_ROOT)!r}); "
        f"runpy.run_module('training.benchmarks.{module}', run_name='__main__')"
    )
    return _answer_of([str(python), "-c", source, json.dumps(request)], os.environ)


def _answer_of(command, environment):
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    if process.returncode != 0:
        raise RuntimeError(
            f"A benchmark failed with exit status {process.returncode}: "
            f"{process.stderr[-2000:]}"
        )
    return json.loads(process.stdout.splitlines()[-1])


def answer(function):
    """Calls `function(**request)` and prints the result for `run` to read."""
    print(json.dumps(plain(function(**json.loads(sys.argv[1])))))


def plain(value):
    """Returns `value` as JSON knows it: named tuples as dicts, keys as strings."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
