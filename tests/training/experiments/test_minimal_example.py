"""The experiment of CONTRIBUTING.md."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from training import experiments
from training.cli import main

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
# A line that begins with the name of a file, then what the file holds.
FILES = re.findall(
    r"^`([\w/.]+)`[^\n]*\n\n```(?:python|yaml)\n(.*?)^```",
    PAGE.read_text(),
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes the files of the example into a folder of experiments."""
    for name, text in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder = str(tmp_path / "training" / "experiments")
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, folder])
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("training.experiments.regression", None)


@pytest.mark.slow
def test_example_trains_and_exports(written, monkeypatch, capsys):
    monkeypatch.chdir(written)
    assert main(["train", "configs/regression/small.yaml"]) == 0
    assert "test error at NFE" in capsys.readouterr().out
    folder = Path("runs/regression-small/model")
    assert json.loads((folder / "diagnosis.json").read_text())["evaluations"] > 1
    assert any((folder / "tensorboard").rglob("events*"))
    litert = ["--format", "litert", "--out", "exported.tflite"]
    assert main(["export", str(folder.parent), *litert]) == 0
    assert main(["evaluate-export", str(folder.parent), litert[-1]]) == 0
