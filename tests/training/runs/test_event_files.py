import json
import math
import re

import pytest
import tensorflow as tf
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.training.runs import small_runs
from training.config import reading as configs
from training.data import images as datasets
from training.errors import InputError
from training.experiments.classification.job import ClassificationJob
from training.runs import event_files
from training.runs import train as training
from training.runs.callbacks import EpochRecorder


def written(folder):
    """Returns (file's folder, tag, step) -> value of all event files of a run."""
    values = {}
    for file in sorted((folder / "tensorboard").rglob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                place = (
                    file.parent.relative_to(folder).as_posix(),
                    value.tag,
                    event.step,
                )
                assert place not in values or value.tag == "keras", place
                values[place] = tf.make_ndarray(value.tensor)
    return values


class Board:
    """Writes a number an epoch, as the callbacks of a run do."""

    def __init__(self, folder):
        self.folder = folder / "tensorboard"
        self.sizes = event_files._Sizes(self.folder)
        self.writer = tf.summary.create_file_writer(str(self.folder / "train"))

    def epoch(self, epoch, is_whole=True):
        with self.writer.as_default(epoch):
            tf.summary.scalar("loss", epoch)
        self.writer.flush()
        if is_whole:
            self.sizes.on_epoch_end(epoch)


def test_what_the_checkpoint_does_not_have_is_taken_back(tmp_path):
    board = Board(tmp_path)
    for epoch in range(5):
        board.epoch(epoch)
    later = Board(tmp_path)
    later.writer = tf.summary.create_file_writer(str(tmp_path / "tensorboard" / "new"))
    later.epoch(5, is_whole=False)
    # The checkpoint is that of the fourth epoch, and then the one before it.
    for num_epochs in (4, 3):
        event_files.rewind(tmp_path, num_epochs)
        steps = sorted(step for _, _, step in written(tmp_path))
        assert steps == list(range(num_epochs))
    again = Board(tmp_path)
    again.epoch(3)
    assert sorted(step for _, _, step in written(tmp_path)) == [0, 1, 2, 3]
    event_files.rewind(tmp_path, 0)
    assert written(tmp_path) == {}


def test_files_of_others_and_of_earlier_versions_stay(tmp_path):
    board = Board(tmp_path)
    board.epoch(0, is_whole=False)
    event_files.rewind(tmp_path, 1)
    assert len(written(tmp_path)) == 1
    note = tmp_path / "tensorboard" / "note.txt"
    note.write_text("mine")
    event_files.rewind(tmp_path, 0)
    assert note.read_text() == "mine"


def test_damaged_sizes_are_named(tmp_path):
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    (folder / "sizes.json").write_text("[1]")
    with pytest.raises(InputError, match=r"sizes\.json.*Remove it"):
        event_files.rewind(tmp_path, 1)


def plugin_data(folder, tag):
    """Returns the data that a run has for the tab HParams under a tag."""
    (content,) = [
        value.metadata.plugin_data.content
        for file in folder.glob("tensorboard/events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
        if value.tag == f"_hparams_/{tag}"
    ]
    return HParamsPluginData.FromString(content)


@pytest.mark.slow
def test_a_run_shows_its_equilibrium_its_parameters_and_its_scores(tmp_path, small):
    small["tensorboard"] = True
    directory = small_runs.finished(tmp_path / "run", configs.resolve(small))
    values = written(directory.run("model"))
    assert {folder for folder, _, _ in values} == {"tensorboard"}
    assert {
        *("epoch_loss", "epoch_val_loss", "epoch_deq_residual", "epoch_learning_rate"),
        *("deq/evaluations", "deq/residual_curve", "deq/phase"),
        "deq/residual_over_evaluations/epoch_0000",
        *("scores/accuracy", "scores/spectral_radius", "scores/parameters"),
    } <= {tag for _, tag, _ in values}
    layout = values["tensorboard", "custom_scalars__config__", 0].item()
    losses, residuals = Layout.FromString(layout).category[0].chart
    for chart, count in ((losses, 2), (residuals, 1)):
        pattern = "|".join(chart.multiline.tag)
        assert len({tag for _, tag, _ in values if re.match(pattern, tag)}) == count
    data = plugin_data(directory.run("model"), "session_start_info")
    parameters = data.session_start_info.hparams
    assert parameters["optimizer.learning_rate"].number_value == 0.01
    assert parameters["model.solver.class_name"].string_value == "anderson"
    assert parameters["phases.0.epochs"].number_value == 1
    assert not any(name.startswith("variants") for name in parameters)


def finished(folder, small, variants):
    """Writes the scores of runs, and returns the folder of the first and the config."""
    config = configs.resolve({**small, "tensorboard": True, "variants": variants})
    row = {"budget": 1, "accuracy": 0.5, "residual": 0.1}
    evaluation = {"parameters": 1, "budgets": [row]}
    for name in configs.run_names(config):
        run = folder / name
        run.mkdir(parents=True)
        (run / "evaluation.json").write_text(json.dumps(evaluation))
        event_files.write_scores(config, run, name)
    return folder / configs.run_names(config)[0], config


def test_parameters_in_which_variants_differ_come_first(tmp_path, small):
    variants = {
        "one": {},
        "two": {"optimizer.learning_rate": 0.5, "model.regularizer": "residual"},
    }
    small["seeds"] = [3, 4]
    first, _ = finished(tmp_path, small, variants)
    experiment = plugin_data(first, "experiment").experiment
    columns = experiment.hparam_infos
    assert [column.name for column in columns if column.differs] == [
        *("model.regularizer", "optimizer.learning_rate", "seed")
    ]
    assert [column.differs for column in columns[:4]] == [True] * 3 + [False]
    rate = columns[1].domain_interval
    assert (rate.min_value, rate.max_value) == (0.01, 0.5)
    assert columns[0].domain_discrete.values[0].string_value == "residual"
    assert [metric.name.tag for metric in experiment.metric_infos] == [
        *("scores/accuracy", "scores/parameters")
    ]


def test_scores_are_written_once(tmp_path, small):
    folder, config = finished(tmp_path, small, {"model": {}})
    (file,) = (folder / "tensorboard").iterdir()
    before = file.read_bytes()
    event_files.write_scores(config, folder, "model")
    assert [*(folder / "tensorboard").iterdir()] == [file]
    assert file.read_bytes() == before
    # A resumed run trains on, and writes them after it.
    event_files.rewind(folder, 0)
    assert not file.exists()


@pytest.mark.slow
def test_an_interrupted_run_writes_nothing_twice(tmp_path, small, monkeypatch):
    small["tensorboard"] = True
    small["phases"] = [{"name": "tied", "epochs": 1, "gradient": "unrolled"}]
    small["phases"].append({"epochs": 2})
    config = configs.resolve(small)

    def run(folder):
        folder.mkdir(exist_ok=True)
        job = ClassificationJob(config, lambda: datasets.load(config.data))
        return training.train(job, folder)

    run(tmp_path / "whole")
    record = EpochRecorder.on_epoch_end
    for killed in (0, 1, 2):

        def die(recorder, epoch, logs=None, killed=killed):
            if epoch == killed:  # What TensorBoard shows is written, no checkpoint.
                raise small_runs.Killed
            record(recorder, epoch, logs)

        monkeypatch.setattr(EpochRecorder, "on_epoch_end", die)
        with pytest.raises(small_runs.Killed):
            run(tmp_path / "parts")
    monkeypatch.undo()
    run(tmp_path / "parts")
    whole, parts = written(tmp_path / "whole"), written(tmp_path / "parts")
    clocks = ("time", "_per_", "data_wait")
    measured = {place for place in whole if any(clock in place[1] for clock in clocks)}
    # A phase is named where a process enters it.
    phases = {place for place in parts if place[1] == "deq/phase"}
    assert whole.keys() - phases == parts.keys() - phases
    for place in whole.keys() - measured - phases:
        if whole[place].dtype.kind == "f":
            assert math.isclose(whole[place].sum(), parts[place].sum()), place
    steps = {step for _, tag, step in whole if tag == "deq/samples_per_second"}
    assert steps == {0, 1, 2}
