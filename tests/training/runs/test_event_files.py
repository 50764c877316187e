"""Event files hold hyperparameters and each epoch once."""

import math

import pytest
import tensorflow as tf
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.training.runs import small_runs
from training.config import reading as configs
from training.experiments.classification.job import ClassificationJob
from training.runs import event_files
from training.runs import train as training
from training.runs.callbacks import EpochRecorder


def events(folder):
    """Yields the folder of the file, the tag, the step and the value of all events."""
    for file in sorted((folder / "tensorboard").rglob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                name = file.parent.relative_to(folder).as_posix()
                yield name, value.tag, event.step, value


def test_hyperparameters_are_dotted_paths(small):
    config = configs.resolve({**small, "phases": [{"epochs": 3}]})
    parameters = event_files.hyper_parameters(configs.variant(config, "model"))
    assert parameters["optimizer.learning_rate"] == 0.01
    assert parameters["model.solver.class_name"] == "anderson"
    assert parameters["phases.0.epochs"] == 3
    assert None not in parameters.values()
    assert not any(name.startswith(("variants", "evaluation")) for name in parameters)


@pytest.mark.slow
def test_run_logs_training_equilibrium_and_hyperparameters(tmp_path, small):
    small["tensorboard"] = True
    directory = small_runs.finished(tmp_path / "run", configs.resolve(small))
    found = list(events(directory.run("model")))
    assert {
        ("tensorboard/train", "epoch_loss"),
        ("tensorboard/train", "epoch_deq_residual"),
        ("tensorboard/train", "epoch_learning_rate"),
        ("tensorboard/validation", "epoch_loss"),
        ("tensorboard/equilibrium", "deq/evaluations"),
        ("tensorboard/equilibrium", "deq/residual_curve"),
        ("tensorboard/equilibrium", "deq/phase"),
        ("tensorboard/equilibrium", "deq/residual_over_evaluations/epoch_0000"),
    } <= {(folder, tag) for folder, tag, _, _ in found}
    (content,) = [
        value.metadata.plugin_data.content
        for folder, tag, _, value in found
        if (folder, tag) == ("tensorboard", "_hparams_/session_start_info")
    ]
    session = HParamsPluginData.FromString(content).session_start_info
    assert session.hparams["optimizer.learning_rate"].number_value == 0.01


@pytest.mark.slow
def test_resumed_run_writes_each_epoch_once(tmp_path, small, monkeypatch):
    small["tensorboard"] = True
    small["phases"] = [{"name": "tied", "epochs": 1, "gradient": "unrolled"}]
    small["phases"].append({"epochs": 2})
    config = configs.resolve(small)

    def run(folder):
        folder.mkdir(exist_ok=True)
        return training.train(ClassificationJob(config), folder)

    def losses(folder):
        return {
            (name, step): float(tf.make_ndarray(value.tensor))
            for name, tag, step, value in events(folder)
            if tag == "epoch_loss"
        }, [step for _, tag, step, _ in events(folder) if tag == "epoch_loss"]

    run(tmp_path / "whole")
    record = EpochRecorder.on_epoch_end
    for killed in (0, 1, 2):

        def die(recorder, epoch, logs=None, killed=killed):
            if epoch == killed:  # Before the checkpoint of the epoch.
                raise small_runs.Killed
            record(recorder, epoch, logs)

        monkeypatch.setattr(EpochRecorder, "on_epoch_end", die)
        with pytest.raises(small_runs.Killed):
            run(tmp_path / "parts")
    monkeypatch.undo()
    run(tmp_path / "parts")
    (whole, steps), (parts, steps_of_parts) = map(
        losses, (tmp_path / "whole", tmp_path / "parts")
    )
    assert sorted(steps) == sorted(steps_of_parts) == [0, 0, 1, 1, 2, 2]
    assert whole.keys() == parts.keys()
    assert all(math.isclose(whole[key], parts[key], rel_tol=1e-5) for key in whole)
