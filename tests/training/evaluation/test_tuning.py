"""`deq-keras tune` of a finished run."""

import csv
import json
import shutil

import keras
import numpy as np
import pytest

from deq_keras import layers, serving, solvers
from deq_keras.tuning import tune
from training.cli import main
from training.errors import InputError
from training.evaluation.tuning import RECORD, apply, tune_run


@pytest.mark.slow
def test_command_on_a_finished_run(finished_run, tmp_path, capsys):
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
    assert len({row["candidate"] for row in rows}) == 8
    assert (path / "tied" / "tune.svg").stat().st_size > 1000

    out = str(tmp_path / "tuned.tflite")
    options = ["--format", "litert", "--out", out, "--tuned"]
    assert main(["export", *command[1:], *options]) == 0
    assert record["verdict"] in capsys.readouterr().out
    loaded = serving.load(out)
    assert loaded.metadata == {"tuning": record}
    (solver,) = loaded.solvers.values()
    assert solver["max_iter"] == record["solver"]["config"]["max_iter"]


GROUPS = {name: np.ones((2, 3)) for name in ("level 4", "level 9")}


def test_record_of_a_run(tmp_path):
    layer = layers.DEQ(layers.DenseCell(3), "fixed_point_iteration")
    data = np.random.default_rng(0).normal(size=(120, 3)).astype("float32")
    layer(data)
    with pytest.raises(InputError, match="There is no .*tune.json. Write it with deq-"):
        apply(layer, tmp_path)
    tuning = tune(
        *(layer, data, 0.05),
        predict=lambda state: state > 0.1,
        candidates=[solvers.FixedPointIteration(20)],
    )
    (tmp_path / RECORD).write_text(json.dumps(tuning.as_dict()))
    assert apply(layer, tmp_path).as_dict() == tuning.as_dict()
    assert layer.solver.get_config() == tuning.solver.get_config()
    for text in ("{", '{"solver": "anderson"}'):
        (tmp_path / RECORD).write_text(text)
        with pytest.raises(InputError, match="tune.json"):
            apply(layer, tmp_path)


@pytest.mark.parametrize(
    "model, group, name",
    [
        (layers.DEQ(layers.DenseCell(3)), None, "--group"),
        (layers.DEQ(layers.DenseCell(3)), "level 5", "level 5"),
        (keras.Sequential(), None, "model"),
    ],
)
def test_invalid_arguments_raise(model, group, name):
    with pytest.raises(InputError, match=name):
        tune_run(model, GROUPS, (0.1,), 8, group)
