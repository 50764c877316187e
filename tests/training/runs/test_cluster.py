"""What `TF_CONFIG` may say."""

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


def test_each_worker_writes_in_a_folder_of_its_own():
    path = pathlib.Path("runs/digits")
    chief, worker = (cluster.Cluster(["a:1", "b:2"], index) for index in (0, 1))
    assert chief.folder(path) == path
    assert worker.folder(path) == pathlib.Path("runs/digits-worker-1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "needs the environment variable TF_CONFIG"),
        ("{", "must be JSON.*Received: {"),
        ("[]", "a mapping with a mapping `cluster`"),
        ('{"cluster": {"worker": ["a:1"]}}', "a mapping `task`"),
        (json.dumps(task(ps=["a:1"])), "chief and worker alone"),
        (json.dumps(task(worker=["a"])), "a list of `host:port` for `worker`"),
        (json.dumps(task(worker=["a:99999"])), "a list of `host:port`"),
        (json.dumps(task(worker="a:1")), "a list of `host:port`"),
        (json.dumps(task("chief")), r"`type` is one of \['worker'\]"),
        (json.dumps(task(index=2)), "an `index` below 2"),
        (json.dumps(task(index="0")), "an `index` below 2"),
        (json.dumps(task(["worker"])), r"`type` is one of \['worker'\]"),
        (json.dumps(task({"worker": 0})), r"`type` is one of \['worker'\]"),
        ("[" * 100_000, r"must be JSON.*Received: \[{200}\.$"),
        (json.dumps(task(worker=["a:" + 5000 * "1"])), "a list of `host:port`"),
        (json.dumps(task(worker=["a:1", "b:2", "a:1"])), "all addresses differ.*: a:1"),
        (json.dumps(task(worker=["a:1", "A:01"])), "all addresses differ.*: a:1"),
        (json.dumps(task(chief=["a:1"], worker=["a:1"])), "all addresses differ"),
    ],
)
def test_what_is_refused(monkeypatch, text, words):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InputError, match=words):
        cluster.from_environment()
