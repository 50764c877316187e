"""`train` resumes runs exactly, and names what it cannot run."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.runs import small_runs
from tests.training.runs.small_runs import checkpoint as checkpoint_of_run
from training.config import reading as configs
from training.errors import InputError
from training.experiments.classification.job import ClassificationJob
from training.files.saved_model import writing
from training.runs import checkpoint
from training.runs import train as training


def run(config, folder):
    folder.mkdir(exist_ok=True)
    return training.train(ClassificationJob(config), folder)


@pytest.mark.slow
def test_other_epochs_of_the_same_steps_train_the_same_weights(tmp_path, small):
    """Eight steps: two passes, eight epochs of one step, or phases in steps."""
    runs = []
    for phases, steps_per_epoch in (
        ([{"epochs": 2}], None),
        ([{"epochs": 8}], 1),
        ([{"steps": 7}, {"steps": 1}], None),
    ):
        small["phases"] = phases
        small["data"]["steps_per_epoch"] = steps_per_epoch
        runs.append(run(configs.resolve(small), tmp_path / f"{len(runs)}"))
    assert [len(history) for _, history in runs] == [2, 8, 3]
    (expected, _), *others = runs
    for model, _ in others:
        for one, other in zip(model.weights, expected.weights, strict=True):
            np.testing.assert_allclose(
                one, other, rtol=1e-6, atol=1e-6, err_msg=one.path
            )


def test_resumed_phases_in_steps_equal_uninterrupted(tmp_path, small):
    """Epochs of 4, 2, 4 and 1 steps."""
    small["model"]["solver"] = small_runs.QUICK_SOLVER
    phases = [{"name": "tied", "steps": 6}, {"name": "equilibrium", "steps": 5}]

    def train(name, dies_in=None):
        (tmp_path / name).mkdir(exist_ok=True)
        job = small_runs.RegressionJob.of(small, phases, dies_in)
        return training.train(job, tmp_path / name)[1]

    with small_runs.eagerly():
        history = train("whole")
        for epoch in (1, 3):
            with pytest.raises(small_runs.Killed):
                train("parts", epoch)
        resumed = train("parts")
    assert [row["phase"] for row in history] == 2 * ["tied"] + 2 * ["equilibrium"]
    variables = checkpoint_of_run(tmp_path / "parts")
    assert variables["adam/iteration"] == 11
    small_runs.assert_same_histories(resumed, history)
    small_runs.assert_same_checkpoints(tmp_path / "parts", tmp_path / "whole")


def test_finished_run_continues_with_more_epochs(tmp_path, small):
    small["model"]["solver"] = small_runs.QUICK_SOLVER
    small["optimizer"]["schedule"] = "constant"

    def train(epochs, folder):
        folder.mkdir(exist_ok=True)
        with small_runs.eagerly():
            return training.train(
                small_runs.RegressionJob.of(small, [{"epochs": epochs}]), folder
            )

    _, whole = train(2, tmp_path / "whole")
    train(1, tmp_path / "parts")
    results = [tmp_path / "parts" / name for name in ("evaluation.json", "tune.json")]
    for file in results:
        file.write_text("{}")
    model, history = train(1, tmp_path / "parts")
    assert len(history) == 1 and all(file.exists() for file in results)
    model, history = train(2, tmp_path / "parts")
    assert not any(file.exists() for file in results)
    small_runs.assert_same_histories(history, whole)
    small_runs.assert_same_checkpoints(tmp_path / "parts", tmp_path / "whole")


def test_solver_that_xla_cannot_compile_raises(small):
    change = {"jit_compile": True, "model.solver.compact": True}
    config = configs.resolve(small, change.items())
    with pytest.raises(InputError, match="`jit_compile`.*Received"):
        training.check(ClassificationJob(config))


def test_unwritable_event_files_raise(tmp_path, small):
    (tmp_path / "tensorboard").write_text("text")
    small["tensorboard"] = True
    with pytest.raises(OSError, match="File exists") as error:
        run(configs.resolve(small), tmp_path)
    assert error.value.filename == str(tmp_path / "tensorboard")


def test_errors_about_other_files_do_not_change(tmp_path):
    (tmp_path / "file").write_text("text")
    for path, expected in [("file", OSError), ("other", tf.errors.OpError)]:
        with pytest.raises(expected), writing(tmp_path / path):
            tf.io.write_file(str(tmp_path / "file" / "below"), "text")


def test_checkpoint_with_more_epochs_raises(tmp_path, small):
    config = configs.resolve(small)
    keras.utils.clear_session()
    model, optimizer, spans = training.build(ClassificationJob(config))
    training.enter_phase(ClassificationJob(config), model, spans[0], optimizer)
    checkpoint.save(tmp_path, model, [{"epoch": 1}, {"epoch": 2}])
    with pytest.raises(InputError, match="after epoch 2.*have 1 epochs"):
        run(config, tmp_path)
