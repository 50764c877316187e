"""Corrupt tables of a run are named, with the command that writes them again."""

import json
import shutil

import pytest

from training.cli import main
from training.config import reading as configs
from training.files import records
from training.runs.work_directory import WorkDirectory

ROWS = [
    {"epoch": 1, "phase": "tied", "seconds": 1.5, "loss": 2.0},
    {"epoch": 2, "phase": "equilibrium", "seconds": 1.0, "val_accuracy": 0.5},
]
EVALUATION = {
    "parameters": 12,
    "budgets": [{"budget": 4, "accuracy": 0.5, "residual": 0.1, "evaluations": 4.0}],
}
QUANTILES = {"budget": 1, "q10": 0.1, "q25": 0.2, "q50": 0.3, "q75": 0.4, "q90": 0.5}
RADIUS = {**QUANTILES, "mean": 0.5, "converged": 1.0}
DIAGNOSIS = {
    "residual_quantiles": [QUANTILES],
    "evaluations": 3.0,
    "residual": 0.1,
    "converged": 1.0,
    "spectral_radius": RADIUS,
    "samples": [{"residual": 0.1, "jacobian_norm": 0.2}],
}


@pytest.fixture
def measured(tmp_path, small):
    """The work directory of a run as far as its tables go."""
    directory = WorkDirectory.start(tmp_path / "run", configs.resolve(small))
    with directory.in_use():
        folder = directory.run("model")
        records.write_csv(folder / "history.csv", ROWS)
        records.write_json(folder / "evaluation.json", EVALUATION)
        records.write_json(folder / "diagnosis.json", DIAGNOSIS)
    return directory.path


def _without(mapping, key):
    return json.dumps({name: value for name, value in mapping.items() if name != key})


def _with(mapping, **changes):
    return json.dumps({**mapping, **changes})


DAMAGE = [
    *[("evaluation.json", text) for text in ("", "[", "null")],
    ("evaluation.json", _without(EVALUATION, "parameters")),
    ("evaluation.json", _with(EVALUATION, parameters="12")),
    ("evaluation.json", _with(EVALUATION, budgets=[{"budget": 4}])),
    ("diagnosis.json", "{}"),
    ("diagnosis.json", _without(DIAGNOSIS, "spectral_radius")),
    ("diagnosis.json", _with(DIAGNOSIS, residual_quantiles=[])),
    ("diagnosis.json", _with(DIAGNOSIS, samples=[{"residual": 0.1}])),
    ("history.csv", ""),
    ("history.csv", "epoch,phase,seconds,loss\n1,tied,1.5,2"),
    ("history.csv", "epoch,phase,seconds,loss\n1,tied\n"),
    ("history.csv", "epoch,phase,seconds,loss\n2,tied,1.5,2.0\n"),
    ("history.csv", "epoch,phase,seconds,loss\n1,tied,1.5,two\n"),
]
COMMANDS = {
    "evaluation.json": "deq-keras evaluate {path} --variant model",
    "diagnosis.json": "deq-keras diagnose {path} --variant model",
    "history.csv": "deq-keras train CONFIG --resume --work-dir {path}",
}


@pytest.mark.parametrize(("name", "content"), DAMAGE)
def test_corrupt_table_is_named(measured, name, content, capsys):
    file = measured / "model" / name
    file.write_text(content)
    assert main(["report", str(measured)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert COMMANDS[name].format(path=measured) in error


def test_folder_or_bytes_in_place_of_a_table_are_named(measured, capsys):
    file = measured / "model" / "history.csv"
    file.write_bytes(b"\xff\xfe\x80")
    assert main(["report", str(measured)]) == 2
    file.unlink()
    file.mkdir()
    assert main(["report", str(measured)]) == 2
    assert capsys.readouterr().err.count(str(file)) == 2


def test_tables_are_shown(measured, capsys):
    assert main(["report", str(measured)]) == 0
    output = capsys.readouterr().out
    assert "2 / 1" in output and "50.0" in output
    rows = records.read_history(measured / "model" / "history.csv", "")
    assert [row["loss"] for row in rows] == ["2.0", ""]


def test_history_without_validation_is_shown(measured, capsys):
    file = measured / "model" / "history.csv"
    records.write_csv(file, ROWS[:1])
    assert main(["report", str(measured)]) == 0
    shutil.rmtree(measured / "model")
    assert main(["report", str(measured)]) == 0
    assert "0 / 1" in capsys.readouterr().out
