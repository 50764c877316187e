"""Two processes train together, are killed, and resume."""

import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from tests import harness
from tests.training.conftest import SMALL
from tests.training.runs.small_runs import assert_same_checkpoints, checkpoint, history

pytestmark = pytest.mark.slow

STILL = [
    "model.cell.dropout_rate=0.0",
    "model.head.dropout_rate=0.0",
    "model.regularizer=residual",  # Others draw noise for the samples of a worker.
    "optimizer.clip_norm=0.3",
    "data.train_examples=64",
    "data.test_examples=39",
]
LONG = ["phases=[{epochs: 3, regularizer: contraction}]"]


class Workers:
    """Runs of a small config, each in a folder below `folder`."""

    def __init__(self, folder):
        self.folder = folder
        self.config = folder / "small.yaml"
        self.config.write_text(yaml.safe_dump({**SMALL, "tensorboard": True}))

    def start(self, name, overrides, *arguments, cluster=None, index=0):
        """Starts one process, a worker of the addresses in `cluster`."""
        arguments = ["train", self.config, "--work-dir", self.folder / name, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
        if cluster is not None:
            overrides = [*overrides, "distribution.strategy=multi_worker"]
            task = {"type": "worker", "index": index}
            config = {"cluster": {"worker": cluster}, "task": task}
            environment["TF_CONFIG"] = json.dumps(config)
        for override in overrides:
            arguments += ["--set", override]
        return subprocess.Popen(
            [sys.executable, "-m", "training", *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_both(self, name, overrides, *arguments):
        cluster = addresses(2)
        return [
            self.start(name, overrides, *arguments, cluster=cluster, index=index)
            for index in range(2)
        ]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    return Workers(tmp_path_factory.mktemp("workers"))


@pytest.fixture(scope="module")
def trained(workers):
    """The folders of the two workers of an uninterrupted run."""
    finish(*workers.start_both("whole", LONG))
    return workers.folder / "whole", workers.folder / "whole-worker-1"


def addresses(count):
    servers = [socket.create_server(("localhost", 0)) for _ in range(count)]
    names = [f"localhost:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    return names


def finish(*processes):
    for process in processes:
        _, error = process.communicate(timeout=900)
        assert process.returncode == 0, error[-4000:]


def test_workers_equal_each_other_and_one_process(workers):
    finish(workers.start("one", STILL))
    finish(*workers.start_both("two", STILL))
    one, two, other = (
        checkpoint(workers.folder / name / "model")
        for name in ("one", "two", "two-worker-1")
    )
    weights = [name for name in one if "seed_generator" not in name]
    for name in weights:
        np.testing.assert_array_equal(other[name], two[name], err_msg=name)
        # Two workers add gradients in another order. The optimizer divides by their
        # magnitude, which amplifies the rounding error of small gradients.
        np.testing.assert_allclose(two[name], one[name], 1e-5, 1e-4, err_msg=name)
    (row,), (expected,) = (
        history(workers.folder / name / "model") for name in ("two", "one")
    )
    assert row.keys() == expected.keys()
    for name in row.keys() - {"phase", "seconds", "data_wait"}:
        np.testing.assert_allclose(float(row[name]), float(expected[name]), 1e-5, 1e-5)


def test_only_the_chief_writes_results(trained):
    chief, worker = trained
    for name in ("model.keras", "best.keras", "history.csv", "evaluation.json"):
        assert (chief / "model" / name).is_file()
    assert (chief / "report.txt").is_file()
    written = {path.name for path in worker.rglob("*") if path.is_file()}
    backups = {"checkpoint.npz", "checkpoint.previous.npz"}
    assert written == {".lock", "config.yaml", *backups}


def test_workers_draw_different_numbers(trained):
    states = [
        {name: state for name, state in arrays.items() if "seed_g" in name}
        for arrays in (checkpoint(folder / "model") for folder in trained)
    ]
    assert states[0]
    for name, state in states[0].items():
        np.testing.assert_array_equal(states[1][name], state + [1, 0])


def test_killed_worker_ends_the_other_and_both_resume(workers, trained):
    chief, worker = workers.start_both("killed", LONG)
    backup = workers.folder / "killed-worker-1" / "model" / "checkpoint.npz"
    while not backup.exists():
        assert worker.poll() is None and chief.poll() is None
        time.sleep(0.01)
    worker.kill()
    killed = time.monotonic()
    _, error = chief.communicate(timeout=120)
    worker.communicate()
    assert time.monotonic() - killed < 30
    assert chief.returncode == 1
    assert "Another worker has ended" in error and "--resume" in error
    assert "Traceback" not in error
    finish(*workers.start_both("killed", LONG, "--resume"))
    for folder, name in zip(trained, ("killed", "killed-worker-1")):
        assert_same_checkpoints(workers.folder / name / "model", folder / "model")
