"""`deq-keras tune` of a finished run."""

import csv
import json
import shutil

import numpy as np
import pytest

from training.cli import main
from training.errors import InputError
from training.evaluation.audit import Group
from training.evaluation.tuning import tune_run


@pytest.mark.slow
def test_the_command_on_a_finished_run(finished_run, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(finished_run.path, path)
    command = ["tune", str(path), "--variant", "tied"]
    assert main(command) == 2
    assert "2,994 samples" in capsys.readouterr().err
    assert not (path / "tied" / "tune.json").exists()

    assert main([*command, "--promise", "0.5", "--format", "svg"]) == 0
    output = capsys.readouterr().out
    record = json.loads((path / "tied" / "tune.json").read_text())
    assert record["promise"] == {"changed": 0.5, "confidence": 0.95}
    assert f"max_iter={record['solver']['config']['max_iter']}" in output
    assert record["verdict"] in output
    rows = list(csv.DictReader((path / "tied" / "tune.csv").read_text().splitlines()))
    costs = [float(row["evaluations"]) for row in rows if float(row["bound"]) <= 0.5]
    assert record["selection"]["evaluations"] == min(costs)
    assert len({row["candidate"] for row in rows}) == 7
    assert (path / "tied" / "tune.svg").stat().st_size > 1000


class _Job:
    """A job with two groups of test examples."""

    def equilibrium(self, model):
        return model

    def opened(self, model):
        return model

    def groups(self, model):
        return [Group(name, np.ones(2), np.ones(2)) for name in ("level 4", "level 9")]


def test_errors():
    with pytest.raises(InputError, match="--group of 'level 4', 'level 9'"):
        tune_run(_Job(), "model", (0.1,))
    with pytest.raises(InputError, match="Received: level 5"):
        tune_run(_Job(), "model", (0.1,), "level 5")
    with pytest.raises(InputError, match="no equilibrium"):
        tune_run(_Job(), None, (0.1,))
