"""The guide to serving: the server's JSON, and scripts that need only a runtime."""

import pathlib
import re
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

from deq_keras.solvers import SolveRequest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "serving.md"
SECTIONS = re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
RUNTIMES = {"LiteRT, formerly TFLite": "ai-edge-litert", "ONNX Runtime": "onnxruntime"}

pytestmark = pytest.mark.slow


def _blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def _section(title):
    return next(text for text in SECTIONS if text.startswith(f"{title}\n"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the files of the guide were written, and its names."""
    folder = tmp_path_factory.mktemp("guide")
    names = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for code in _blocks(SECTIONS[0]) + _blocks(_section("TensorFlow Serving"))[:1]:
            exec(compile(code, str(PAGE), "exec"), names)
    return folder, names


@pytest.mark.parametrize("title", RUNTIMES)
def test_script_runs_without_tensorflow(title, folder, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = [f"{n}=={metadata.version(n)}" for n in (RUNTIMES[title], "numpy")]
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    for missing in ("tensorflow", "keras", "deq_keras"):
        code = f"import {missing}"
        process = subprocess.run([python, "-I", "-c", code], capture_output=True)
        assert b"ModuleNotFoundError" in process.stderr
    _check_script(title, folder, python)


def test_script_runs_without_this_package(folder):
    without = "import sys; sys.modules['keras'] = sys.modules['deq_keras'] = None\n"
    _check_script("TensorFlow", folder, sys.executable, without)


def _check_script(title, folder, python, prelude=""):
    (script,) = _blocks(_section(title))
    process = subprocess.run(
        [python, "-I", "-c", prelude + script],
        cwd=folder[0],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    inputs = np.array([[0.1, -0.4, 0.3, 0.8]], "float32")
    solution = folder[1]["deq"].solve(inputs, SolveRequest(max_iter=6, tol=0.01))
    assert f"[{int(solution.num_evaluations[0])}]" in process.stdout
