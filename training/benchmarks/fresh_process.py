"""Runs a module of this package in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def run(module, request, python=sys.executable, environment=None):
    """Runs `python -m module` and returns its answer.

    Args:
        module: name of a module that calls `answer` when run.
        request: JSON-serialisable object.
        python: path of the interpreter. Defaults to this one.
        environment: dict of further environment variables.

    Raises:
        RuntimeError: if the process fails, with the end of what it wrote.
    """
    search_path = os.pathsep.join(
        filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])
    )
    process = subprocess.run(
        [str(python), "-m", module, json.dumps(request)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": search_path, **(environment or {})},
    )
    if process.returncode != 0:
        raise RuntimeError(
            f"{module} failed with exit status {process.returncode}: "
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
