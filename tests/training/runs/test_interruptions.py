"""A run that is killed between any two writes ends like an uninterrupted one."""

import os
import re
import zipfile

import keras
import numpy as np
import pytest

from tests.training.runs.small_runs import Killed, eagerly
from training.config import reading as configs
from training.experiments.classification.job import ClassificationJob
from training.runs import variants
from training.runs.work_directory import WorkDirectory

# The writes of a variant after its last epoch, in their order.
LAST = ["model.keras", "evaluation.json", "residuals.csv", "residuals.png"]


@pytest.fixture
def phased(small):
    """A config of two phases, the second with other parts than the first, and with
    everything random that there is."""
    small["phases"] = [
        {
            "epochs": 1,
            "solver": {"class_name": "fixed_point_iteration", "max_iter": 2},
            "gradient": "unrolled",
            "regularizer": None,
        },
        {"epochs": 1, "regularizer": "jacobian"},
    ]
    small["optimizer"]["ema_momentum"] = 0.9
    return configs.resolve(small)


@pytest.fixture
def kill_after(monkeypatch):
    """Ends the next run after it has written a file."""
    replace = os.replace

    def arm(name):
        def write(source, target):
            replace(source, target)
            if os.path.basename(target) == name:
                raise Killed

        monkeypatch.setattr(os, "replace", write)

    yield arm


def _run(config, path):
    enter = WorkDirectory.resume if path.exists() else WorkDirectory.start
    directory = enter(path, config)
    folder = directory.folder("model")
    job = ClassificationJob(config, folder=folder)
    with eagerly():
        variants.run({"model": job}, directory)


def _assert_same(parts, whole):
    names = {file.relative_to(whole) for file in whole.rglob("*")}
    assert {file.relative_to(parts) for file in parts.rglob("*")} == names
    for name in ("evaluation.json", "diagnosis.json", "residuals.csv"):
        one, other = (path / "model" / name for path in (parts, whole))
        assert one.read_text() == other.read_text(), name
    for name in ("model.keras", "best.keras"):
        _assert_same_models(parts / "model" / name, whole / "model" / name)


def _assert_same_models(one, other):
    configs = []
    for path in (one, other):
        with zipfile.ZipFile(path) as archive:
            text = archive.read("config.json").decode()
        # It is an address in memory.
        text = re.sub(r'"shared_object_id": \d+', "", text)
        configs.append(text)
    assert configs[0] == configs[1]
    models = [keras.models.load_model(path, compile=False) for path in (one, other)]
    np.testing.assert_equal(*(model.get_weights() for model in models))


@pytest.mark.slow
def test_killed_after_every_write(tmp_path, phased, kill_after, monkeypatch):
    _run(phased, tmp_path / "whole")
    first = ["config.yaml", "best.keras", "history.csv", "checkpoint.npz"]
    second = ["checkpoint.previous.npz", "checkpoint.npz"]
    for name in [*first, *second, *LAST, "accuracy.png"]:
        kill_after(name)
        with pytest.raises(Killed):
            _run(phased, tmp_path / "parts")
        monkeypatch.undo()
    _run(phased, tmp_path / "parts")
    _assert_same(tmp_path / "parts", tmp_path / "whole")
