"""A classification run of seconds."""

import copy

import filelock
import pytest
import tensorflow as tf

from training.config import reading as configs
from training.data.images import photographs
from training.runs.work_directory import WorkDirectory

SMALL = {
    "experiment": "classification",
    "tensorboard": False,
    "data": {
        "batch_size": 16,
        "train_examples": 64,
        "test_examples": 32,
        "augmentation": {"crop_padding": 1},
    },
    "model": {
        "stem": {"filters": 4},
        "cell": {
            "class_name": "residual_block_cell",
            "filters": 4,
            "expansion": 1,
            "groups": 2,
            "dropout_rate": 0.25,
        },
        "solver": {"class_name": "anderson", "max_iter": 4},
        "gradient": "phantom",
        "head": {"dropout_rate": 0.2},
    },
    "optimizer": {"learning_rate": 0.01},
    "phases": [{"epochs": 1}],
    "evaluation": {"budgets": [1, 4], "num_samples": 8, "max_iter": 5},
}


@pytest.fixture
def few_crops(monkeypatch):
    """Tests on four crops of a photograph instead of two thousand."""
    train, test = photographs.load()
    crops = {"camera": test["camera"][200:232, 200:232]}
    monkeypatch.setattr(photographs, "load", lambda: (train, crops))


@pytest.fixture
def small():
    """The plain config of a small classifier, to change as a test likes."""
    return copy.deepcopy(SMALL)


@pytest.fixture
def no_graphs():
    """Runs functions eagerly: tracing a small model takes longer than a few solves."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, worker_id):
    """The `WorkDirectory` of a finished run with two variants. Tests only read it."""
    if worker_id == "master":
        return _finished_run(tmp_path_factory.mktemp("finished") / "run")
    # The processes of a test run share one.
    folder = tmp_path_factory.getbasetemp().parent / "finished"
    with filelock.FileLock(f"{folder}.lock"):
        if (folder / "run").exists():
            return WorkDirectory.open(folder / "run")
        return _finished_run(folder / "run")


def _finished_run(path):
    from tests.training.runs.small_runs import eagerly, finished

    mapping = copy.deepcopy(SMALL)
    mapping["model"]["solver"] = {"class_name": "fixed_point_iteration", "max_iter": 4}
    tied = {
        "model.gradient": "unrolled",
        "model.solver": {
            "class_name": "fixed_point_iteration",
            "max_iter": 3,
            "tol": None,
        },
    }
    mapping["data"]["train_examples"] = 32
    mapping["variants"] = {"equilibrium": {}, "tied": tied}
    with eagerly():
        return finished(path, configs.resolve(mapping))
