"""A work directory survives killed processes and rejects a changed config."""

import os
import subprocess
import sys
import time

import pytest

from training.config import reading as configs
from training.errors import InputError
from training.files import records
from training.files.atomic_file import replacing, write_text
from training.runs.work_directory import WorkDirectory


def begun(path, small):
    """The folder of a run in which nothing has happened yet."""
    directory = WorkDirectory.start(path, configs.resolve(small))
    with directory.in_use():
        pass
    return directory


def test_start_saves_a_config_that_open_reads(tmp_path, small):
    WorkDirectory.start(tmp_path / "a" / "run", configs.resolve(small))
    assert list(tmp_path.iterdir()) == []  # Writes only in use.
    directory = begun(tmp_path / "a" / "run", small)
    assert WorkDirectory.open(tmp_path / "a" / "run").config == directory.config


def test_start_takes_the_folder_of_a_process_killed_at_its_start(tmp_path, small):
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.123.partial.yaml").write_text("experim")
    begun(tmp_path, small)
    assert sorted(os.listdir(tmp_path)) == [".lock", "config.yaml"]


def test_start_in_a_used_folder_raises(tmp_path, small):
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(InputError, match="not empty.*--resume"):
        WorkDirectory.start(tmp_path, configs.resolve(small))
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        WorkDirectory.start(tmp_path / "thesis.tex", configs.resolve(small))


def test_folder_used_meanwhile_raises(tmp_path, small):
    late = WorkDirectory.start(tmp_path, configs.resolve({**small, "seed": 5}))
    begun(tmp_path, small)
    with pytest.raises(InputError, match="not empty"), late.in_use():
        raise AssertionError
    assert WorkDirectory.open(tmp_path).config.seed == 0


def test_resume_without_a_run_raises(tmp_path, small):
    with pytest.raises(InputError, match="not the work directory of a run"):
        WorkDirectory.resume(tmp_path / "nothing", configs.resolve(small))


def test_resume_with_another_config_names_differences(tmp_path, small):
    begun(tmp_path, small)
    assert WorkDirectory.resume(tmp_path, configs.resolve(small)).path == tmp_path
    small["seed"] = 5
    small["phases"][0]["epochs"] = 9
    small["model"]["solver"]["history"] = 3
    with pytest.raises(InputError) as error:
        WorkDirectory.resume(tmp_path, configs.resolve(small))
    assert "seed: was 0, is now 5" in str(error.value)
    assert "phases.0.epochs: was 1, is now 9" in str(error.value)
    assert "model.solver.history: was None, is now 3" in str(error.value)
    assert "batch_size" not in str(error.value)


def test_resume_accepts_more_seeds(tmp_path, small):
    begun(tmp_path, {**small, "seeds": [4, 2]})
    more = configs.resolve({**small, "seeds": [2, 4, 6]})
    directory = WorkDirectory.resume(tmp_path, more)
    assert WorkDirectory.open(tmp_path).config.seeds == [4, 2]
    with directory.in_use():
        assert WorkDirectory.open(tmp_path).config == directory.config == more
    for seeds in ([2, 4], [2, 6, 8], None):
        with pytest.raises(InputError, match="seeds.*: was"):
            WorkDirectory.resume(tmp_path, configs.resolve({**small, "seeds": seeds}))


def test_resume_with_more_seeds_keeps_the_trained_epochs(tmp_path, small):
    directory = begun(tmp_path, {**small, "seeds": [0]})
    rows = [{"epoch": 1, "loss": 1.0}]
    records.write_csv(directory.run("model/seed_0") / records.HISTORY, rows)
    changed = {**small, "seeds": [0, 1], "phases": [{"epochs": 1, "solver": "aitken"}]}
    with pytest.raises(InputError, match="phases.0.solver.*: was"):
        WorkDirectory.resume(tmp_path, configs.resolve(changed))
    assert WorkDirectory.open(tmp_path).config.seeds == [0]


def test_resume_accepts_phases_after_the_trained_epochs(tmp_path, small):
    small["phases"] = [{"name": "warm", "epochs": 1}, {"epochs": 2}]
    directory = begun(tmp_path, small)
    rows = [{"epoch": epoch, "loss": 1.0} for epoch in (1, 2)]
    records.write_csv(directory.run("model") / records.HISTORY, rows)
    accepted = [
        [{"name": "warm", "epochs": 1}, {"epochs": 9}],
        [{"name": "warm", "epochs": 1}, {"epochs": 1}],
        [
            {"name": "warm", "epochs": 1},
            {"epochs": 1},
            {"epochs": 1, "solver": "aitken"},
        ],
    ]
    refused = [
        [{"name": "warm", "epochs": 2}, {"epochs": 2}],
        [{"name": "warm", "epochs": 1}],
        [{"name": "warm", "epochs": 1}, {"epochs": 2, "solver": "aitken"}],
        [{"name": "warm", "epochs": 1}, {"epochs": 2, "max_iter_jitter": 1}],
    ]
    for phases in refused:
        with pytest.raises(InputError, match="phases.*: was"):
            WorkDirectory.resume(tmp_path, configs.resolve({**small, "phases": phases}))
    for phases in accepted:
        config = configs.resolve({**small, "phases": phases})
        with WorkDirectory.resume(tmp_path, config).in_use():
            assert WorkDirectory.open(tmp_path).config == config
        with pytest.raises(InputError, match="seed: was 0, is now 5"):
            WorkDirectory.resume(tmp_path, config.model_copy(update={"seed": 5}))


def test_resume_keeps_phases_in_steps(tmp_path, small):
    """The first phase may have one or two epochs, and the second one none."""
    small["phases"] = [{"steps": 9}, {"steps": 3}]
    directory = begun(tmp_path, small)
    rows = [{"epoch": epoch, "loss": 1.0} for epoch in (1, 2)]
    records.write_csv(directory.run("model") / records.HISTORY, rows)
    for phases in ([{"steps": 8}, {"steps": 3}], [{"steps": 9}, {"steps": 4}]):
        with pytest.raises(InputError, match="phases.*steps: was"):
            WorkDirectory.resume(tmp_path, configs.resolve({**small, "phases": phases}))
    longer = configs.resolve({**small, "phases": [*small["phases"], {"epochs": 1}]})
    assert WorkDirectory.resume(tmp_path, longer).config == longer


def test_resume_keeps_the_epochs_of_a_ramp(tmp_path, small):
    ramp = {"regularizer": "jacobian", "regularizer_ramp": {"factor": [0, 1]}}
    small["phases"] = [{"epochs": 2, **ramp}]
    directory = begun(tmp_path, small)
    longer = configs.resolve({**small, "phases": [{"epochs": 3, **ramp}]})
    assert WorkDirectory.resume(tmp_path, longer).config == longer
    rows = [{"epoch": 1, "loss": 1.0}]
    records.write_csv(directory.run("model") / records.HISTORY, rows)
    with pytest.raises(InputError, match="phases.0.epochs: was 2"):
        WorkDirectory.resume(tmp_path, longer)


@pytest.mark.parametrize("content", [b"", b"\x00\xff"])
def test_corrupt_config_raises(tmp_path, small, content):
    begun(tmp_path, small)
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"(?s)config\.yaml.*Put back"):
        WorkDirectory.open(tmp_path)


def test_one_process_at_a_time(tmp_path, small):
    config = configs.resolve(small)
    with begun(tmp_path, small).in_use():
        for enter in (WorkDirectory.start, WorkDirectory.resume):
            with pytest.raises(InputError, match=f"at work in {tmp_path}.*Wait"):
                with enter(tmp_path, config).in_use():
                    raise AssertionError
    with WorkDirectory.resume(tmp_path, config).in_use():
        pass


PROCESS = """
import sys, time
from training.config import reading as configs
from training.runs.work_directory import WorkDirectory

path, file = sys.argv[1:]
with WorkDirectory.start(path, configs.load(file)).in_use():
    time.sleep(600)
"""


def test_killed_process_holds_no_lock(tmp_path, small):
    directory = begun(tmp_path / "other", small)
    arguments = [tmp_path / "run", directory.path / "config.yaml"]
    process = subprocess.Popen([sys.executable, "-c", PROCESS, *map(str, arguments)])
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "config.yaml").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(InputError, match=f"at work in {tmp_path / 'run'}"):
        WorkDirectory.start(tmp_path / "run", directory.config)
    process.kill()
    process.wait()
    with WorkDirectory.resume(tmp_path / "run", directory.config).in_use():
        pass


def test_incomplete_files_are_removed(tmp_path, small):
    directory = begun(tmp_path, small)
    partial = [".model.12.partial.keras", ".report.7.partial", ".x.y.3.partial.npz"]
    others = [".model.keras", "model.12.partial.keras", ".notes.partial.txt"]
    folder = directory.run("model")
    (folder / "overlays").mkdir()
    for name in [*partial, *others]:
        (folder / name).touch()
        (folder / "overlays" / name).touch()
    with directory.in_use():
        assert sorted(os.listdir(folder)) == sorted([*others, "overlays"])
        assert sorted(os.listdir(folder / "overlays")) == sorted(others)


def test_interrupted_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "state.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_text(path, "new")
    assert path.read_text() == "new"


def test_failed_write_names_the_file(tmp_path):
    path = tmp_path / "state.txt"
    with pytest.raises(OSError) as error, replacing(path) as temporary:
        temporary.touch()
        raise OSError(28, "No space left on device")
    assert error.value.filename == str(path) and error.value.errno == 28
    with pytest.raises(OSError) as error:
        write_text(tmp_path / ("x" * 300), "text")
    assert error.value.filename == str(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []
