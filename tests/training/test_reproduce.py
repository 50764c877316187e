"""The command `deq-keras reproduce`."""

import json
import re

import pytest
import yaml

from training.cli import main
from training.cli.reproduce_command import EXPERIMENTS, MEASUREMENTS, resolve
from training.costs import models
from training.evaluation.report import score_table
from training.registry import Score
from training.runs.work_directory import WorkDirectory


def test_list_has_all_experiments(capsys):
    assert main(["reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, experiment in {**EXPERIMENTS, **MEASUREMENTS}.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert experiment.source in line and experiment.shows in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--quick"], "Received: name=None"),
        (["penalty", "--work-dir", "{full}"], "not empty"),
        (["language", "--quick", "--set", "sede=1", "--work-dir", "{new}"], "sede"),
        (
            [
                "penalty",
                "--quick",
                "--set",
                "variants.new={{optimizer.learning_rate: 0.5}}",
            ],
            "weight_decay.*new",
        ),
        (
            ["memory", "--set", "seed=1", "--work-dir", "{new}"],
            "Received: --set seed=1",
        ),
        (
            ["vision", "--quick", "--set", "variants={{a: {{}}}}"],
            "Received: variants=a",
        ),
    ],
)
def test_bad_input_raises(arguments, words, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    places = {name: tmp_path / name for name in ("full", "new")}
    command = ["reproduce", *(word.format(**places) for word in arguments)]
    assert main(command) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not places["new"].exists()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_configs_have_published_numbers(name):
    assert resolve(name, is_quick=False).published
    quick = resolve(name, is_quick=True)
    assert tuple(quick.variants) == EXPERIMENTS[name].quick_variants
    assert set().union(*quick.published.values()) <= set(quick.variants)


def test_second_command_continues(tmp_path, small, monkeypatch, capsys):
    runs = []
    monkeypatch.setattr(
        "training.runs.variants.run", lambda jobs, _: runs.append(list(jobs))
    )
    small["variants"] = {"one": {}, "two": {"optimizer.learning_rate": 0.02}}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(small))
    experiment = EXPERIMENTS["penalty"]._replace(
        config=str(config), quick_variants=("two",), quick_overrides=("seeds=[0]",)
    )
    monkeypatch.setitem(EXPERIMENTS, "penalty", experiment)
    command = ["reproduce", "penalty", "--quick", "--work-dir", str(tmp_path / "run")]
    directory = WorkDirectory.start(tmp_path / "run", resolve("penalty", True))
    with directory.in_use():
        pass
    assert main(command) == 0
    assert runs == [["two/seed_0"]]
    assert main([*command, "--set", "optimizer.learning_rate=0.5"]) == 2
    assert "another config" in capsys.readouterr().err


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_measures_a_table_once(name, tmp_path, monkeypatch, capsys):
    assert set(models.MEASUREMENTS) == set(MEASUREMENTS)
    monkeypatch.setitem(models.MEASUREMENTS, name, lambda effort: {"seconds": 0.5})
    command = ["reproduce", name, "--quick", "--work-dir", str(tmp_path / "new")]
    assert main(command) == 0
    assert f"{name}, seconds: 0.5" in capsys.readouterr().out
    results = json.loads((tmp_path / "new" / f"{name}.json").read_text())
    assert results[name] == {"seconds": 0.5} and "commit" in results["environment"]
    assert main(command) == 2
    assert "earlier measurement" in capsys.readouterr().err


def test_published_numbers_are_columns():
    rows = {"one": [{"budget": 6, "loss": 1.25, "residual": 0.5}]}
    score = Score("loss", "loss", 1, ".2f")
    table = score_table(rows, score, published={"loss": {"one": 1.5}, "time": {}})
    heading, line, _, residual = (row.split() for row in table.splitlines())
    assert heading[-4:] == ["published", "loss", "published", "time"]
    assert line == ["one", "1.25", "1.5"] and residual == ["one", "0.5"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_variants_run(name, tmp_path):
    folder = tmp_path / "run"
    assert main(["reproduce", name, "--quick", "--work-dir", str(folder)]) == 0
    report = (folder / "report.txt").read_text()
    assert all(variant in report for variant in EXPERIMENTS[name].quick_variants)
