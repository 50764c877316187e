import errno
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

import deq_keras
from tests.training.runs.small_runs import assert_same_checkpoints
from training.cli import main
from training.runs.callbacks import EpochRecorder


@pytest.fixture
def config_file(tmp_path, small):
    path = tmp_path / "digits" / "small.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(small))
    return path


@pytest.mark.slow
def test_train_reports_and_refuses_a_second_run(
    config_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(config_file), "--set", "phases.0.epochs=1"]) == 0
    output = capsys.readouterr().out
    assert "test accuracy" in output
    (line,) = [line for line in output.splitlines() if line.startswith("epoch")]
    assert len(line) <= 100
    for word in ("1/1", "loss", "accuracy", "val", "NFE", "residual", " s"):
        assert word in line
    assert (tmp_path / "runs" / "digits-small" / "model" / "model.keras").is_file()
    assert main(["train", str(config_file)]) == 2
    assert "never overwrites" in capsys.readouterr().err
    assert main(["train", str(config_file), "--resume", "--set", "seed=3"]) == 2
    assert "seed: was 0, is now 3" in capsys.readouterr().err


def test_commands_on_a_finished_run(finished_run, tmp_path, capsys):
    path = str(finished_run.path)
    assert main(["report", path]) == 0
    assert "spectral radius" in capsys.readouterr().out
    out = str(tmp_path / "tied.tflite")
    variant = [path, "--variant", "tied"]
    with finished_run.in_use():  # Commands that only read a run need no lock.
        assert main(["export", *variant, "--format", "litert", "--out", out]) == 0
    assert "agree to" in capsys.readouterr().out
    evaluation = finished_run.path / "tied" / "evaluation.json"
    before = evaluation.read_bytes()
    assert main(["evaluate", *variant, "--exported", out]) == 0
    output = capsys.readouterr().out.splitlines()
    scores = [row for row in output if "tied" in row]
    *_, heading, median, percentile, note = output
    assert heading.split() == ["latency", "[ms]", "at", "NFE", "1", "4"]
    medians = [float(word) for word in median.split()[1:]]
    percentiles = [float(word) for word in percentile.split()[2:]]
    assert len(medians) == len(percentiles) == 2
    assert all(0 < low <= high for low, high in zip(medians, percentiles))
    assert "20 requests per budget, of 32 samples each" in note
    assert main(["report", path]) == 0
    reported = [row for row in capsys.readouterr().out.splitlines() if "tied" in row]
    assert [row.split() for row in scores] == [row.split() for row in reported[1:3]]
    assert evaluation.read_bytes() == before


def test_scores_at_tolerances(finished_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished_run.path, run)
    evaluation = (run / "tied" / "evaluation.json").read_bytes()
    assert main(["evaluate", str(run), "--tolerances", "1", "1e-6"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    counts = {name: list(map(float, values)) for name, *values in table[-2:]}
    # Solves at the tolerance 1 end at once, at 1e-6 with the largest budget of the run.
    assert counts == {"equilibrium": [4.0, 1.0], "tied": [4.0, 1.0]}
    assert (run / "tolerances.png").is_file()
    rows = (run / "tied" / "tolerances.csv").read_text().splitlines()
    assert rows[0].startswith("tolerance,") and len(rows) == 3
    assert (run / "tied" / "evaluation.json").read_bytes() == evaluation


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["saved_model", "onnx"])
def test_an_export_has_the_table_of_the_model(
    file_format, finished_run, tmp_path, capsys
):
    variant = [str(finished_run.path), "--variant", "equilibrium"]
    out = str(tmp_path / "export.onnx")
    assert main(["export", *variant, "--format", file_format, "--out", out]) == 0
    capsys.readouterr()
    assert main(["evaluate", *variant, "--exported", out]) == 0
    scores = capsys.readouterr().out
    assert main(["evaluate", *variant]) == 0
    table = capsys.readouterr().out.split("\n\n")[1]
    row = next(row for row in table.splitlines() if row.startswith("equilibrium"))
    assert row.split() == scores.splitlines()[1].split()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nothing.yaml"], "nothing.yaml"),
        (["report", "nothing"], "not the work directory of a run"),
        (["evaluate", "{run}", "--variant", "tide"], "Did you mean `tied`?"),
        (["diagnose", "{run}", "--variant", "x"], "There is no variant `x`"),
        (["export", "{run}", "--out", "x"], "one --variant of equilibrium, tied"),
        (
            *(["export", "{run}", "--variant", "tied", "--out", "x", "--tuned"],),
            "tune.json. Write it with deq-keras tune",
        ),
        (
            *(["export", "{run}", "--variant", "tied", "--out", "x", "--certify"],),
            "x was not written. `certify=True` needs a cell that bounds the distance",
        ),
        (
            ["export", "{run}", "--variant=tied", "--out=x", "--format=preset"]
            + ["--certify"],
            "--certify needs --format saved_model, litert or onnx",
        ),
        (
            ["generate", "{run}", "--variant", "tied", "--prompt", "x"],
            "language_model, trellisnet. Received: experiment=classification",
        ),
        (["evaluate", "{run}", "--data", "x"], "classification reads no files"),
        (
            ["evaluate", "{run}", "--data", "x", "--format", "svg"],
            "draw no figures. Leave --format out. Received: format=svg",
        ),
        (
            ["evaluate", "{run}", "--exported", "x"],
            "one --variant of equilibrium, tied",
        ),
        (
            ["evaluate", "{run}", "--variant", "tied", "--exported", "x.onnx"],
            "x.onnx",
        ),
    ],
)
def test_input_errors_have_status_2_and_no_traceback(
    finished_run, arguments, words, capsys
):
    arguments = [argument.format(run=finished_run.path) for argument in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


@pytest.mark.parametrize("name", ["digits/mian", "configs/digits/mian.yaml", "main"])
def test_a_config_that_is_not_there_is_named_with_a_near_one(name, capsys):
    assert main(["train", name]) == 2
    error = capsys.readouterr().err
    assert (
        f"neither a file '{name}'" in error and "Did you mean `digits/main`?" in error
    )


@pytest.mark.parametrize(
    "name", ["digits/main", "digits/main.yaml", "./configs/digits/main.yaml"]
)
def test_a_shipped_config_is_found_by_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", name, "--set", "histroy=3"]) == 2
    assert "configs/digits/main.yaml: " in capsys.readouterr().err
    paths = []
    monkeypatch.setattr(
        "training.runs.variants.run", lambda jobs, directory, _: paths.append(directory)
    )
    assert main(["train", name]) == 0
    assert str(paths[0].path) == "runs/digits-main"


def test_a_file_comes_before_a_shipped_config(config_file, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "training.runs.variants.run", lambda jobs, *_: seen.append(jobs)
    )
    monkeypatch.chdir(tmp_path)
    config_file.rename(tmp_path / "digits" / "main")
    assert main(["train", "digits/main"]) == 0
    assert list(seen[0]) == ["model"]


@pytest.mark.parametrize("budget", ["3000000000", "100000"])
def test_a_budget_that_no_trace_holds_is_refused(finished_run, budget, capsys):
    file = finished_run.folder("tied") / "evaluation.json"
    before = file.read_bytes()
    command = ["evaluate", str(finished_run.path), "--budgets", "2", budget]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "--budgets" in error and budget in error and "<= 10000" in error
    assert file.read_bytes() == before


def test_a_repeated_budget_is_measured_once(finished_run, capsys):
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


def test_a_run_in_use_is_read_and_not_written(finished_run, tmp_path, capsys):
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


@pytest.mark.parametrize(
    "place",
    ["file/run", "file/a/run", "x" * 300],
    ids=["below a file", "deep below a file", "too long"],
)
def test_a_work_directory_that_cannot_be_made_is_named(
    config_file, tmp_path, place, capsys
):
    (tmp_path / "file").write_text("text")
    path = f"{tmp_path}/{place}"
    assert main(["train", str(config_file), "--work-dir", path]) == 2
    error = capsys.readouterr().err
    assert error.startswith("deq-keras: error:") and str(tmp_path) in error


def test_an_export_that_cannot_be_written_is_named(finished_run, tmp_path, capsys):
    (tmp_path / "file").write_text("text")
    out = str(tmp_path / "file" / "exported")
    command = ["export", str(finished_run.path), "--variant", "tied", "--out", out]
    assert main(command) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_damaged_model_is_named(finished_run, tmp_path, capsys):
    path = shutil.copytree(finished_run.path, tmp_path / "run")
    file = path / "tied" / "model.keras"
    file.write_bytes(file.read_bytes()[:5000])
    for command in (["evaluate"], ["diagnose"], ["export", "--out", "x"]):
        assert main([*command, str(path), "--variant", "tied"]) == 2
        error = capsys.readouterr().err
        assert str(file) in error and "--resume" in error


def test_a_full_disk_is_named(config_file, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    assert main(["train", str(config_file), "--work-dir", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path / 'config.yaml'}: No space left on device. Free some space" in error
    monkeypatch.undo()
    assert os.listdir(path) == [".lock"]


def test_an_interruption_tells_how_to_go_on(config_file, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    path = str(tmp_path / "run")
    command = ["train", str(config_file), "--work-dir", path, "--set", "seed=3"]
    with monkeypatch.context() as patch:
        patch.setattr(EpochRecorder, "on_epoch_begin", interrupt)
        assert main(command) == 130
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "interrupted" in error
    again = shlex.split(error.partition("deq-keras train")[2])
    assert again == [*command[1:], "--resume"]


def test_an_interruption_before_anything_is_written(
    config_file, tmp_path, monkeypatch, capsys
):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("training.runs.train.check", interrupt)
    monkeypatch.setattr("training.runs.variants.check", interrupt)
    assert main(["train", str(config_file), "--work-dir", str(tmp_path / "run")]) == 130
    assert "run the command again" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["trian"],
        ["evaluate", "x", "--budgets", "0"],
        ["generate", "x"],
        *(
            ["generate", "x", "--prompt", "x", option, value]
            for option, value in (
                ("--temperature", "0"),
                ("--temperature", "nan"),
                ("--temperature", "warm"),
                ("--top-k", "0"),
                ("--seed", "-1"),
                ("--seed", "3000000000"),
                ("--max-length", "1"),
                ("--max-length", "100000"),
            )
        ),
    ],
)
def test_unknown_commands_and_arguments(arguments):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--help"], 0, "import-checkpoint"),
        (["train", "--help"], 0, "--work-dir"),
        (["--version"], 0, f"deq-keras {deq_keras.__version__}\n"),
        (["trian", "x"], 2, "Did you mean `train`?"),
        (["train", "digits/mian"], 2, "Did you mean `digits/main`?"),
        (["train", "{file}"], 2, "Did you mean `seed`?"),
        (
            ["train", "digits/main", "--set", "phases.0.epoch=3"],
            2,
            "Did you mean `phases.0.epochs`?",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_needs_no_tensorflow_does_not_import_it(
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


def test_characters_that_the_output_lacks_are_replaced(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", output)
    assert main(["reproduce"]) == 0
    print("wall: \u2588")
    output.flush()
    assert output.buffer.getvalue().endswith(b"wall: ?\n")


def test_unfinished_run_has_no_model(tmp_path, small, capsys):
    from training.config import reading as configs
    from training.runs.work_directory import WorkDirectory

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
    assert_same_checkpoints(state.parent, tmp_path / "whole" / "model")
