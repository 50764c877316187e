"""What `deq-keras doctor` prints."""

import pytest
import tensorflow as tf

from deq_keras import solvers
from training import machine
from training.cli import main


def test_doctor_prints_every_fact(capsys, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert main(["doctor"]) == 0
    lines = dict(
        line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()
    )
    assert lines["tensorflow"] == tf.__version__
    assert lines["devices"].startswith("CPU 0")
    assert "TF_ENABLE_ONEDNN_OPTS=0" in lines["environment"]
    assert lines["self-test"].startswith("passed: error of a linear solve")
    assert int(lines["processors"]) >= 1
    assert lines["oneDNN"] == "off"
    assert lines["TF32"] == "on"
    assert lines["XLA"] == "off by default"
    assert lines["instructions"] == (", ".join(machine.environment()["instructions"]))


@pytest.mark.slow
def test_a_wrong_solve_fails_the_self_test(monkeypatch):
    solve = solvers.Anderson.solve

    def wrong(self, *arguments, **options):
        solution = solve(self, *arguments, **options)
        return solution._replace(value=solution.value + 1e-3)

    monkeypatch.setattr(solvers.Anderson, "solve", wrong)
    (text,) = [text for name, text in machine.report() if name == "self-test"]
    assert text.startswith("FAILED: error of a linear solve 1e-03")
