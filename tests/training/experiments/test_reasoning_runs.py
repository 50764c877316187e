"""Runs of the experiment `reasoning`, from the config to the pictures."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.training.experiments.test_reasoning import config, job
from tests.training.runs import small_runs
from training.cli import main
from training.config import reading as configs
from training.runs.train import train
from training.runs.work_directory import WorkDirectory

FOLDER = Path(__file__).parents[3] / "configs" / "reasoning"
SMALL = {
    "prefix_sums": ([4], [4, 6]),
    "mazes": ([5], [5, 7]),
    "chains": ([3], [3, 5]),
    "words": ([3], [3, 5]),
    "sudoku_4x4": ([2, 4], [4, 0]),
    "sudoku_6x6": ([4], [8, 0]),
}
UNITS = {
    "automaton_cell": "filters",
    "board_cell": "units",
    "mixer_cell": "units",
    "recall_cell": "filters",
}


def shipped(name, *overrides):
    """Returns a shipped config, made small, as overrides of the command line."""
    whole = configs.load(FOLDER / f"{name}.yaml")
    levels, test = SMALL[name]
    drawn = [{"level": level, "examples": 6} for level in test]
    cell = whole.model.cell["class_name"]
    values = {
        "data.levels": levels,
        "data.validation": drawn,
        "data.test": drawn,
        "data.batch_size": 8,
        "data.updates_per_epoch": 3,
        f"model.cell.{UNITS[cell]}": 8,
        "phases.0.epochs": 2,
        "optimizer.warmup_epochs": 0,
        "evaluation.budgets": [4, 40],
        "evaluation.max_iter": 10,
        "evaluation.num_samples": 3,
        "tensorboard": False,
    }
    if whole.model.embedding_units:
        values["model.embedding_units"] = 8
    if whole.evaluation.picture is not None:
        values["evaluation.picture"] = {"level": test[0], "evaluations": 3}
    sets = [f"{path}={json.dumps(value)}" for path, value in values.items()]
    return [part for one in (*sets, *overrides) for part in ("--set", one)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_task_trains_and_is_measured(name, tmp_path, capsys):
    folder = tmp_path / "run"
    arguments = ["train", str(FOLDER / f"{name}.yaml"), "--work-dir", str(folder)]
    assert main([*arguments, *shipped(name)]) == 0
    text = capsys.readouterr().out
    assert "exact answers [%] at NFE" in text and (folder / "report.txt").exists()
    for variant in configs.load(folder / "config.yaml").variants:
        run = folder / variant
        rows = small_runs.history(run)
        assert len(rows) == 2 and all(row["val_exact_match"] for row in rows)
        levels = json.loads((run / "levels.json").read_text())["levels"]
        assert [level["level"] for level in levels] == SMALL[name][1]
        assert (run / "accuracy.png").exists()
        assert small_runs.evaluation(run)["budgets"] == levels[-1]["budgets"]
        if (run / f"{name}.gif").exists():
            with Image.open(run / f"{name}.gif") as image:
                assert image.n_frames >= 2
    has_picture = name in ("mazes", "sudoku_4x4", "sudoku_6x6")
    assert (run / f"{name}.gif").exists() == has_picture


def test_tolerance_ends_solves(tmp_path):
    measured = job(config(), tmp_path)
    model = measured.build_model()
    at_once, late = (
        measured.measure_model(model, [8], tol=tol)[0] for tol in (1e6, 1e-9)
    )
    assert (at_once["budget"], at_once["evaluations"]) == (8, 1)
    assert at_once["residual"] > 1.5 * late["residual"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run of mazes."""
    folder = tmp_path_factory.mktemp("reasoning") / "run"
    changed = config(evaluation__budgets=[2, 12])
    directory = WorkDirectory.start(folder, changed)
    with directory.in_use():
        run = directory.run("model")
        model, _ = train(job(changed, run), run)
    return folder


@pytest.mark.slow
class TestCommands:
    def test_mazes_of_a_user(self, finished, tmp_path, capsys):
        before = {file: file.read_bytes() for file in finished.rglob("*.*")}
        mazes = tmp_path / "mazes.txt"
        mazes.write_text("#####\n#S G#\n#####\n\n######\n#S  G#\n######\n")
        assert main(["evaluate-problems", str(finished), str(mazes)]) == 0
        heading, model, *_ = capsys.readouterr().out.splitlines()
        assert heading.split()[-2:] == ["2", "12"]
        assert set(map(float, model.split()[1:])) <= {0.0, 50.0, 100.0}
        mazes.write_text("#####\n#S#G#\n#####\n")
        assert main(["evaluate-problems", str(finished), str(mazes)]) == 2
        assert "Expected a path" in capsys.readouterr().err
        assert before == {file: file.read_bytes() for file in finished.rglob("*.*")}
