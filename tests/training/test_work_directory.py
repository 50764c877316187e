import pytest

from training import config as configs
from training.atomic_file import replacing, write_text
from training.errors import InputError
from training.work_directory import WorkDirectory


def test_start_saves_a_config_that_open_reads(tmp_path, small):
    config = configs.resolve(small)
    WorkDirectory.start(tmp_path / "a" / "run", config)
    assert WorkDirectory.open(tmp_path / "a" / "run").config == config


def test_start_takes_an_empty_folder(tmp_path, small):
    assert WorkDirectory.start(tmp_path, configs.resolve(small)).path == tmp_path


def test_start_never_clobbers(tmp_path, small):
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(InputError, match="not empty.*--resume"):
        WorkDirectory.start(tmp_path, configs.resolve(small))
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        WorkDirectory.start(tmp_path / "thesis.tex", configs.resolve(small))


def test_resume_wants_a_run(tmp_path, small):
    with pytest.raises(InputError, match="not the work directory of a run"):
        WorkDirectory.resume(tmp_path / "nothing", configs.resolve(small))


def test_resume_wants_the_same_config_and_names_differences(tmp_path, small):
    WorkDirectory.start(tmp_path, configs.resolve(small))
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


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_text(path, "new")
    assert path.read_text() == "new"
