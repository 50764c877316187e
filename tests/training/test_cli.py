import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from training.cli import main


@pytest.fixture
def config_file(tmp_path, small):
    path = tmp_path / "digits" / "small.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(small))
    return path


def test_train_reports_and_refuses_a_second_run(
    config_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(config_file), "--set", "phases.0.epochs=1"]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert (tmp_path / "runs" / "digits-small" / "model" / "model.keras").is_file()
    assert main(["train", str(config_file)]) == 2
    assert "never overwrites" in capsys.readouterr().err
    assert main(["train", str(config_file), "--resume", "--set", "seed=3"]) == 2
    assert "seed: was 0, is now 3" in capsys.readouterr().err


def test_commands_on_a_finished_run(finished_run, tmp_path, capsys):
    path = str(finished_run.path)
    assert main(["report", path]) == 0
    assert "spectral radius" in capsys.readouterr().out
    out = str(tmp_path / "exported")
    assert main(["export", path, "--variant", "tied", "--out", out]) == 0
    assert "agree to" in capsys.readouterr().out
    assert (tmp_path / "exported" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nothing.yaml"], "nothing.yaml"),
        (["report", "nothing"], "not the work directory of a run"),
        (["evaluate", "{run}", "--variant", "tide"], "Did you mean `tied`?"),
        (["diagnose", "{run}", "--variant", "x"], "There is no variant `x`"),
        (["export", "{run}", "--out", "x"], "one --variant of equilibrium, tied"),
    ],
)
def test_input_errors_have_status_2_and_no_traceback(
    finished_run, arguments, words, capsys
):
    arguments = [argument.format(run=finished_run.path) for argument in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


@pytest.mark.parametrize(
    "arguments",
    [[], ["trian"], ["benchmark", "speed"], ["evaluate", "x", "--budgets", "0"]],
)
def test_unknown_commands_and_arguments(arguments):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


def test_unfinished_run_has_no_model(tmp_path, small, capsys):
    from training import config as configs
    from training.work_directory import WorkDirectory

    with WorkDirectory.start(tmp_path, configs.resolve(small)).in_use():
        pass
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "Finish the training first" in capsys.readouterr().err


def test_diverged_training_has_status_1(config_file, tmp_path, capsys):
    arguments = ["train", str(config_file), "--work-dir", str(tmp_path / "run")]
    overrides = ["optimizer.name=sgd", "optimizer.learning_rate=1e38"]
    for override in [*overrides, "optimizer.schedule=constant"]:
        arguments += ["--set", override]
    assert main(arguments) == 1
    assert "The loss is" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_process_resumes_to_the_same_weights(config_file, tmp_path):
    def command(name, *more):
        return [
            *(sys.executable, "-m", "training", "train", str(config_file)),
            *("--work-dir", str(tmp_path / name), "--set", "phases.0.epochs=40"),
            *more,
        ]

    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run(command("whole"), check=True, env=environment)
    process = subprocess.Popen(command("parts"), env=environment)
    state = tmp_path / "parts" / "model" / "checkpoint.npz"
    deadline = time.monotonic() + 120
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "parts" / "model" / "model.keras").exists()
    subprocess.run(command("parts", "--resume"), check=True, env=environment)
    with (
        np.load(state) as parts,
        np.load(tmp_path / "whole" / "model" / "checkpoint.npz") as whole,
    ):
        for name in set(whole.files) - {"history"}:
            np.testing.assert_array_equal(parts[name], whole[name])
