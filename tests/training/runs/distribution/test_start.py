"""What is refused before anything is made or written."""

import pytest
import tensorflow as tf

from training.cli import main
from training.config import reading as configs
from training.config.fields import DistributionConfig
from training.data import images
from training.data.pipeline import WHOLE
from training.errors import InputError
from training.experiments.classification.job import ClassificationJob
from training.runs.distribution import OneDevice, Replicas, start


class TwoReplicas(Replicas):
    """Two of them, of which no device need know."""

    num_replicas = 2

    def __init__(self):
        super().__init__(tf.distribute.get_strategy(), WHOLE)


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ({"strategy": "miror"}, "strategy` must be one of .*Did you mean `mirrored`"),
        ({"strategy": "mirrored", "devices": []}, "a list of at least one element"),
        ({"strategy": "mirrored", "devices": ["CPU:0"] * 2}, "without repetitions"),
        ({"strategy": "mirrored", "logical_cpus": 0}, "integer >= 1"),
        ({"devices": ["GPU:0"]}, "`distribution.devices` is for .*strategy=single"),
        ({"logical_cpus": 2, "strategy": "multi_worker"}, "logical_cpus` is for"),
        ({"start_timeout": 0}, "integer >= 1"),
        ({"device": None}, "Did you mean `distribution.devices`"),
    ],
)
def test_configs_that_are_refused(small, assignments, words):
    assignments = {f"distribution.{name}": v for name, v in assignments.items()}
    with pytest.raises(InputError, match=words):
        configs.resolve(small, assignments.items())


def test_variants_have_one_strategy(small):
    small["variants"] = {"a": {}, "b": {"distribution.strategy": "mirrored"}}
    with pytest.raises(InputError, match="cannot change `variants`, .*`distribution`"):
        configs.resolve(small)


def test_the_default_is_one_device(small):
    assert configs.resolve(small).distribution == DistributionConfig()
    assert isinstance(start(DistributionConfig()), OneDevice)


def test_more_devices_than_there_are():
    with pytest.raises(InputError, match=r"\['CPU:0'\].*devices=\['CPU:0', 'CPU"):
        start(DistributionConfig("mirrored", devices=["CPU:0", "CPU:1"]))


def test_a_cpu_is_divided_before_tensorflow_starts():
    tf.config.list_logical_devices()
    with pytest.raises(InputError, match="before TensorFlow starts.*logical_cpus=3"):
        start(DistributionConfig("mirrored", logical_cpus=3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data.batch_size": 15}, "`data.batch_size` must be a multiple of 2.*=15"),
        ({"data.evaluation_batch_size": 3}, "`data.evaluation_batch_size`.*size=3"),
        ({"data.batch_size": 74}, "at most the number of training examples.*=74"),
        ({"jit_compile": True}, "`jit_compile` must be false"),
    ],
)
def test_a_job_that_replicas_cannot_train(small, change, words):
    change["distribution.strategy"] = "mirrored"
    config = configs.resolve(small, change.items())
    job = ClassificationJob(
        config, lambda: images.load(config.data), None, TwoReplicas()
    )
    with pytest.raises(InputError, match=words):
        job.distribution.check(job)


@pytest.mark.parametrize(("num_examples", "steps"), [(40, 1), (42, 2), (80, 2), (3, 1)])
def test_every_replica_has_a_row_of_each_validation_batch(num_examples, steps):
    assert TwoReplicas().validation_steps(num_examples, 40) == steps
    assert OneDevice().validation_steps(num_examples, 40) is None


@pytest.mark.parametrize("num_examples", [1, 41])
def test_a_validation_batch_that_has_none(num_examples):
    with pytest.raises(InputError, match="size=40, which leaves 1"):
        TwoReplicas().validation_steps(num_examples, 40)


def test_nothing_is_written_of_a_refused_run(tmp_path, capsys):
    path = tmp_path / "run"
    arguments = ["train", "digits/main", "--work-dir", str(path)]
    arguments += ["--set", "distribution.strategy=mirrored"]
    assert main([*arguments, "--set", "distribution.devices=[GPU:7]"]) == 2
    assert "GPU:7" in capsys.readouterr().err
    assert not path.exists()
