"""Console commands print results, or a one-line error and an exit status."""

import errno
import io
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

import deq_keras
from training.cli import main
from training.config import reading as configs
from training.config import shipped
from training.runs.callbacks import EpochRecorder
from training.runs.work_directory import WorkDirectory


@pytest.fixture
def config_file(tmp_path, small):
    path = tmp_path / "residual" / "small.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(small))
    return path


def test_commands_on_a_finished_run(finished_run, tmp_path, capsys):
    path = str(finished_run.path)
    assert main(["report", path]) == 0
    assert "spectral radius" in capsys.readouterr().out
    out = str(tmp_path / "tied.tflite")
    variant = ["--variant", "tied", path]
    with finished_run.in_use():  # Commands that only read a run need no lock.
        assert main(["export", *variant, "--format", "litert", "--out", out]) == 0
    assert "agree to" in capsys.readouterr().out
    evaluation = finished_run.path / "tied" / "evaluation.json"
    before = evaluation.read_bytes()
    assert main(["evaluate-export", *variant, out]) == 0
    output = capsys.readouterr().out.splitlines()
    scores = [row for row in output if "tied" in row]
    *_, heading, median, percentile, _ = output
    assert heading.split() == ["latency", "[ms]", "at", "NFE", "1", "4"]
    medians = [float(word) for word in median.split()[1:]]
    percentiles = [float(word) for word in percentile.split()[2:]]
    assert all(0 < low <= high for low, high in zip(medians, percentiles, strict=True))
    assert main(["report", path]) == 0
    reported = [row for row in capsys.readouterr().out.splitlines() if "tied" in row]
    assert [row.split() for row in scores] == [row.split() for row in reported[1:3]]
    assert evaluation.read_bytes() == before


def test_scores_at_tolerances(finished_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished_run.path, run)
    evaluation = (run / "tied" / "evaluation.json").read_bytes()
    assert main(["sweep", str(run), "--tolerances", "1", "1e-6"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    counts = {name: list(map(float, values)) for name, *values in table[-2:]}
    # The tolerance 1 needs one evaluation, and 1e-6 the largest budget of the run.
    assert counts == {"equilibrium": [4.0, 1.0], "tied": [4.0, 1.0]}
    assert (run / "tolerances.png").is_file()
    rows = (run / "tied" / "tolerances.csv").read_text().splitlines()
    assert rows[0].startswith("tolerance,") and len(rows) == 3
    assert (run / "tied" / "evaluation.json").read_bytes() == evaluation


TIED = ["{run}", "--variant", "tied"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nothing.yaml"], "nothing.yaml"),
        (["train", "residual/digist"], "Did you mean `residual/digits`?"),
        (["report", "nothing"], "nothing"),
        (["evaluate", "{run}", "--variant", "tide"], "Did you mean `tied`?"),
        (["evaluate", "{run}", "--budgets", "2", "100000"], "--budgets"),
        (["sweep", "{run}", "--tolerances", "1", "--max-iter", "20000"], "--max-iter"),
        (["evaluate-problems", "{run}", "x"], "classification"),
        (["evaluate-export", "{run}", "x"], "one --variant"),
        (["evaluate-export", *TIED, "x.onnx"], "x.onnx"),
        (["export", "{run}", "--out", "x"], "one --variant"),
        (["export", *TIED, "--out", "x", "--tuned"], "tune.json"),
        (["export", *TIED, "--out", "x", "--format", "onnx"], "must end in .onnx"),
        (["export", *TIED, "--out", "{run}/config.yaml/x"], "config.yaml"),
        (["generate", *TIED, "--prompt", "x"], "experiment=classification"),
    ],
)
def test_bad_input_has_status_2(finished_run, arguments, words, capsys):
    evaluation = finished_run.folder("tied") / "evaluation.json"
    before = evaluation.read_bytes()
    arguments = [argument.format(run=finished_run.path) for argument in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    assert evaluation.read_bytes() == before


def test_shipped_config_is_found_by_name(config_file, tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(
        "training.runs.variants.run",
        lambda jobs, directory, _: runs.append((list(jobs), str(directory.path))),
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "./configs/residual/digits.yaml"]) == 0
    # A file takes precedence.
    config_file.rename(tmp_path / "residual" / "digits")
    assert main(["train", "residual/digits", "--work-dir", "own"]) == 0
    (_, shipped), (variants, own) = runs
    assert shipped == "runs/residual-digits" and (variants, own) == (["model"], "own")


def test_repeated_budget_is_measured_once(finished_run, capsys):
    file = finished_run.folder("tied") / "evaluation.json"
    report = finished_run.path / "report.txt"
    before = {written: written.read_bytes() for written in (file, report)}
    command = ["evaluate", str(finished_run.path), "--variant", "tied"]
    assert main([*command, "--budgets", "2", "1", "2"]) == 0
    assert [row["budget"] for row in json.loads(file.read_text())["budgets"]] == [1, 2]
    printed = capsys.readouterr().out
    assert "+-" not in printed.partition("at NFE")[2].split("Means")[0]
    assert report.read_text() == printed
    for written, content in before.items():
        written.write_bytes(content)


def test_run_in_use_is_read_only(finished_run, tmp_path, capsys):
    path = str(finished_run.path)
    file = tmp_path / "same.yaml"
    file.write_text((finished_run.path / "config.yaml").read_text())
    train = ["train", str(file), "--work-dir", path]
    with finished_run.in_use():
        for command in (["evaluate", path], ["diagnose", path], train):
            assert main(command) == 2
            error = capsys.readouterr().err
            assert f"Another process is at work in {path}" in error
        assert main(["report", path]) == 0


def test_corrupt_model_is_named(finished_run, tmp_path, capsys):
    path = shutil.copytree(finished_run.path, tmp_path / "run")
    file = path / "tied" / "model.keras"
    file.write_bytes(file.read_bytes()[:5000])
    assert main(["evaluate", str(path), "--variant", "tied"]) == 2
    error = capsys.readouterr().err
    assert str(file) in error and "--resume" in error


def test_full_disk_is_named(config_file, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("training.runs.variants.check", lambda *_: None)
    monkeypatch.setattr(os, "fsync", fail)
    assert main(["train", str(config_file), "--work-dir", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path / 'config.yaml'}: No space left on device. Free some space" in error
    monkeypatch.undo()
    assert os.listdir(path) == [".lock"]


def test_interruption_shows_the_command_to_resume(
    config_file, tmp_path, monkeypatch, capsys
):
    def interrupt(*_):
        raise KeyboardInterrupt

    path = str(tmp_path / "run")
    command = ["train", str(config_file), "--work-dir", path, "--set", "seed=3"]
    with monkeypatch.context() as patch:
        patch.setattr("training.runs.variants.check", lambda *_: None)
        patch.setattr(EpochRecorder, "on_epoch_begin", interrupt)
        assert main(command) == 130
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "interrupted" in error
    again = shlex.split(error.partition("deq-keras train")[2])
    assert again == [*command[1:], "--resume"]


def test_interruption_before_the_first_file(config_file, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("training.runs.train.check", interrupt)
    monkeypatch.setattr("training.runs.variants.check", interrupt)
    assert main(["train", str(config_file), "--work-dir", str(tmp_path / "run")]) == 130
    assert "run the command again" in capsys.readouterr().err


GENERATE = ["generate", "x", "--prompt", "x"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["generate", "x"],
        ["evaluate", "x", "--budgets", "0"],
        [*GENERATE, "--temperature", "nan"],
        [*GENERATE, "--temperature", "warm"],
        [*GENERATE, "--seed", "3000000000"],
        [*GENERATE, "--max-length", "1"],
    ],
)
def test_bad_arguments_have_status_2(arguments):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--help"], 0, "import-checkpoint"),
        (["--version"], 0, f"deq-keras {deq_keras.__version__}\n"),
        (["trian", "x"], 2, "Did you mean `train`?"),
        (["train", "{file}"], 2, "Did you mean `seed`?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_found_without_tensorflow(
    arguments, status, words, small, tmp_path
):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**small, "sed": 1}))
    source = (
        "import sys; from training.cli import main\n"
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as error: status = error.code\n"
        "assert not {'tensorflow', 'keras', 'deq_keras'} & set(sys.modules)\n"
        "sys.exit(status)"
    )
    arguments = [argument.format(file=file) for argument in arguments]
    command = [sys.executable, "-c", source, *arguments]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == status, process.stderr
    assert words in (process.stderr if status else process.stdout)
    assert "Traceback" not in process.stderr


def test_unknown_characters_are_replaced(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", output)
    assert main(["reproduce"]) == 0
    print("wall: \u2588")
    output.flush()
    assert output.buffer.getvalue().endswith(b"wall: ?\n")


def test_unfinished_run_has_no_model(tmp_path, small, capsys):
    with WorkDirectory.start(tmp_path, configs.resolve(small)).in_use():
        pass
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "Finish the training first" in capsys.readouterr().err


@pytest.mark.slow
def test_diverged_training_has_status_1(config_file, tmp_path, capsys):
    arguments = ["train", str(config_file), "--work-dir", str(tmp_path / "run")]
    overrides = ["optimizer.name=sgd", "optimizer.learning_rate=1e6"]
    for override in [*overrides, "optimizer.schedule=constant"]:
        arguments += ["--set", override]
    assert main(arguments) == 1
    assert "The loss is" in capsys.readouterr().err


def test_configs_are_listed_with_their_subjects(capsys):
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == shipped.names()
    assert all(len(line.split(maxsplit=1)[1]) > 5 for line in lines[1:])
