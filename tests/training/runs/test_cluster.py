"""Clusters of the environment variable `TF_CONFIG`."""

import json
import pathlib

import pytest

from training.errors import InputError
from training.runs import cluster


def task(kind="worker", index=0, **cluster):
    cluster = cluster or {"worker": ["a:1", "b:2"]}
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


@pytest.mark.parametrize(
    ("content", "addresses", "index"),
    [
        (task(), ["a:1", "b:2"], 0),
        (task(index=1), ["a:1", "b:2"], 1),
        (task(chief=["c:1"], worker=["a:1", "b:2"]), ["c:1", "a:1", "b:2"], 1),
        (task("chief", chief=["c:1"], worker=["a:1"]), ["c:1", "a:1"], 0),
        ({**task(worker=["[::1]:80"]), "environment": "cloud"}, ["[::1]:80"], 0),
    ],
)
def test_workers_in_the_order_of_tensorflow(monkeypatch, content, addresses, index):
    monkeypatch.setenv("TF_CONFIG", json.dumps(content))
    assert cluster.from_environment() == cluster.Cluster(addresses, index)


def test_each_worker_has_a_folder():
    path = pathlib.Path("runs/digits")
    chief, worker = (cluster.Cluster(["a:1", "b:2"], index) for index in (0, 1))
    assert chief.folder(path) == path
    assert worker.folder(path) == pathlib.Path("runs/digits-worker-1")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{",
        "[" * 100_000,
        '{"cluster": {"worker": ["a:1"]}}',
        json.dumps(task(ps=["a:1"])),
        json.dumps(task(worker=["a"])),
        json.dumps(task(worker=["a:99999"])),
        json.dumps(task("chief")),
        json.dumps(task(["worker"])),
        json.dumps(task(index=2)),
        json.dumps(task(worker=["a:1", "A:01"])),
        json.dumps(task(chief=["a:1"], worker=["a:1"])),
    ],
    ids=range(12),
)
def test_invalid_environment_raises(monkeypatch, text):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InputError, match="TF_CONFIG.*such as"):
        cluster.from_environment()
