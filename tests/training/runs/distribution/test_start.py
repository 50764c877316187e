"""Errors of distributions before training."""

import types

import pytest
import tensorflow as tf

from training.cli import main
from training.config import reading as configs
from training.config.fields import DistributionConfig
from training.errors import InputError
from training.experiments.classification.job import ClassificationJob
from training.runs.distribution import OneDevice, Replicas, rows, start
from training.runs.platform_repairs import seed_replicas


class TwoReplicas(Replicas):
    """Two replicas without devices."""

    num_replicas = 2

    def __init__(self):
        super().__init__(tf.distribute.get_strategy())


def test_every_replica_has_seeds_of_its_own():
    copies = [tf.Variable([7, 5]) for _ in range(3)]
    state = types.SimpleNamespace(path="dropout/seed_generator_state", value=copies)
    strategy = types.SimpleNamespace(experimental_local_results=lambda copies: copies)
    seed_replicas(strategy, types.SimpleNamespace(variables=[state]))
    assert [copy.numpy().tolist() for copy in copies] == [[7, 5], [8, 5], [9, 5]]


@pytest.mark.parametrize(
    ("assignments", "name"),
    [
        ({"strategy": "miror"}, "strategy"),
        ({"strategy": "mirrored", "devices": ["CPU:0"] * 2}, "devices"),
        ({"strategy": "mirrored", "logical_cpus": 0}, "logical_cpus"),
        ({"devices": ["GPU:0"]}, "devices"),
        ({"logical_cpus": 2}, "logical_cpus"),
    ],
)
def test_invalid_config_raises(small, assignments, name):
    assignments = {f"distribution.{name}": v for name, v in assignments.items()}
    with pytest.raises(InputError, match=f"`distribution.{name}`.*Received"):
        configs.resolve(small, assignments.items())


def test_default_is_one_device(small):
    assert configs.resolve(small).distribution == DistributionConfig()
    assert isinstance(start(DistributionConfig()), OneDevice)


def test_missing_device_raises():
    with pytest.raises(InputError, match=r"\['CPU:0'\].*devices=\['CPU:0', 'CPU"):
        start(DistributionConfig(strategy="mirrored", devices=["CPU:0", "CPU:1"]))


def test_cpu_cannot_be_divided_after_the_start():
    tf.config.list_logical_devices()
    with pytest.raises(InputError, match="before TensorFlow starts.*logical_cpus=3"):
        start(DistributionConfig(strategy="mirrored", logical_cpus=3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data.batch_size": 15}, "`data.batch_size` must be a multiple of 2.*=15"),
        ({"data.evaluation_batch_size": 3}, "`data.evaluation_batch_size`.*size=3"),
        ({"data.batch_size": 74}, "at most the number of training examples.*=74"),
        ({"jit_compile": True}, "`jit_compile` must be false"),
        ({"optimizer.accumulation_steps": 2}, "`optimizer.accumulation_steps`.*s=2"),
    ],
)
def test_job_that_replicas_cannot_train(small, change, words):
    change["distribution.strategy"] = "mirrored"
    config = configs.resolve(small, change.items())
    job = ClassificationJob(config, distribution=TwoReplicas())
    with pytest.raises(InputError, match=words):
        job.distribution.check(job.feed)


@pytest.mark.parametrize(("num_examples", "steps"), [(40, 1), (42, 2), (80, 2), (3, 1)])
def test_every_replica_has_a_row_of_each_validation_batch(num_examples, steps):
    assert TwoReplicas().validation_steps(num_examples, 40) == steps
    assert OneDevice().validation_steps(num_examples, 40) is None


@pytest.mark.parametrize("num_examples", [1, 41])
def test_validation_batch_without_a_row_raises(num_examples):
    with pytest.raises(InputError, match="size=40, which leaves 1"):
        TwoReplicas().validation_steps(num_examples, 40)


@pytest.mark.parametrize(("batch_size", "static"), [(4, [1]), (6, [None])])
def test_replicas_divide_the_rows_of_each_batch(batch_size, static):
    """Rows of a nest; a static size stays static, and smaller batches divide too."""
    batches = tf.data.Dataset.range(8).map(lambda row: (row, {"y": 10 * row}))
    batches = batches.batch(batch_size, drop_remainder=batch_size == 4)
    parts = [batches.map(lambda *b: rows(b, index, 3)) for index in range(3)]
    assert parts[0].element_spec[0].shape.as_list() == static
    read = zip(batches.as_numpy_iterator(), *(p.as_numpy_iterator() for p in parts))
    for (whole, _), *shares in read:
        x, y = zip(*shares)
        assert [n for part in x for n in part] == list(whole)
        assert [n for part in y for n in part["y"]] == [10 * n for n in whole]
        assert max(map(len, x)) - min(map(len, x)) <= 1


def test_refused_run_writes_nothing(tmp_path, capsys):
    path = tmp_path / "run"
    arguments = ["train", "residual/digits", "--work-dir", str(path)]
    arguments += ["--set", "distribution.strategy=mirrored"]
    assert main([*arguments, "--set", "distribution.devices=[GPU:7]"]) == 2
    assert "GPU:7" in capsys.readouterr().err
    assert not path.exists()
