"""Runs of every variant with several seeds."""

import json
import shutil
import statistics

import pytest
import yaml

from training.cli import main
from training.config import reading as configs
from training.errors import InputError
from training.files import records

NAMES = [f"{name}/seed_{seed}" for seed in (3, 5) for name in ("plain", "tied")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from tests.training.conftest import SMALL

    folder = tmp_path_factory.mktemp("seeds")
    config = {
        **SMALL,
        "seeds": [3, 5],
        "variants": {
            "plain": {},
            "tied": {
                "model.gradient": "unrolled",
                "model.solver": {
                    "class_name": "fixed_point_iteration",
                    "max_iter": 2,
                    "tol": None,
                },
            },
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    train = ["train", str(folder / "config.yaml"), "--work-dir", str(folder / "run")]
    assert main(train) == 0
    return folder / "run", train


@pytest.mark.slow
def test_table_has_mean_and_deviation(run):
    path, _ = run
    scores = []
    for seed in (3, 5):
        file = path / "plain" / f"seed_{seed}" / records.EVALUATION
        rows = json.loads(file.read_text())["budgets"]
        scores.append(100 * rows[-1]["accuracy"])
    report = (path / "report.txt").read_text()
    expected = f"{statistics.mean(scores):.1f} +- {statistics.stdev(scores):.1f}"
    (line,) = [
        line
        for line in report.split("accuracy [%] at NFE")[1].splitlines()
        if line.startswith("plain ")
    ][:1]
    assert line.endswith(expected)
    assert all(f"{name} " in report for name in NAMES)  # Progress, run by run.
    assert (path / "accuracy.png").is_file() and (path / "residuals.png").is_file()


@pytest.mark.slow
def test_run_of_a_seed_equals_a_single_run(run, tmp_path):
    path, train = run
    changes = ("seeds=null", "seed=5", "variants={plain: {}}")
    single = [*train[:2], *(word for change in changes for word in ("--set", change))]
    assert main([*single, "--work-dir", str(tmp_path / "single")]) == 0
    seeds, alone = path / "plain" / "seed_5", tmp_path / "single" / "plain"
    for file in (records.EVALUATION, records.DIAGNOSIS):
        assert (seeds / file).read_text() == (alone / file).read_text()
    first = (path / "plain" / "seed_3" / records.EVALUATION).read_text()
    assert first != (path / "plain" / "seed_5" / records.EVALUATION).read_text()


@pytest.mark.slow
def test_resume_measures_the_missing_seed(run, capsys):
    path, train = run
    before = (path / "report.txt").read_text()
    file = path / "tied" / "seed_5" / records.EVALUATION
    kept = file.read_text()
    file.unlink()
    assert main([*train, "--resume"]) == 0
    assert file.read_text() == kept
    assert (path / "report.txt").read_text() == before


@pytest.mark.slow
def test_finished_run_takes_more_seeds(run, tmp_path):
    path, train = run
    copy = shutil.copytree(path, tmp_path / "run")
    kept = {
        file: file.read_bytes() for name in NAMES for file in (copy / name).glob("*.k*")
    }
    more = [*train[:3], str(copy), "--set", "seeds=[3, 5, 7]"]
    assert main([*more, "--resume"]) == 0
    assert all(file.read_bytes() == content for file, content in kept.items())
    assert (copy / "tied" / "seed_7" / "model.keras").is_file()
    assert configs.load(copy / "config.yaml").seeds == [3, 5, 7]
    assert "plain/seed_7" in (copy / "report.txt").read_text()
    # Seeds cannot be removed.
    assert main([*train[:3], str(copy), "--resume"]) == 2


@pytest.mark.slow
def test_commands_select_runs(run, tmp_path, capsys):
    path, _ = run
    out = ["--format", "litert", "--out", str(tmp_path / "model.tflite")]
    assert main(["diagnose", str(path), "--variant", "plain"]) == 0
    printed = capsys.readouterr().out
    assert "plain/seed_3: residuals" in printed and "plain/seed_5:" in printed
    assert "tied/seed_3: residuals" not in printed
    assert main(["export", str(path), "--variant", "plain", *out]) == 2
    assert "Choose one --variant of plain/seed_3, plain/seed_5" in (
        capsys.readouterr().err
    )
    assert main(["export", str(path), "--variant", "plain/seed_5", *out]) == 0
    assert main(["export", str(path), "--variant", "plain/seed_4", *out]) == 2
    assert "Did you mean `plain/seed_" in capsys.readouterr().err


def test_names_of_runs(small):
    config = configs.resolve({**small, "seeds": [4, 2]})
    assert configs.run_names(config) == ["model/seed_4", "model/seed_2"]
    one = configs.run_config(config, "model/seed_2")
    assert (one.seed, one.seeds, list(one.variants)) == (2, None, ["model"])
    with pytest.raises(InputError, match="no run `model`"):
        configs.run_config(config, "model")
