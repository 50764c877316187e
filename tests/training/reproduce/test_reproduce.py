"""`deq-keras reproduce`: the list, resumption, tables, bad input, quick variants."""

import csv
import json

import pytest

from training.cli import main
from training.config import reading as configs
from training.config import shipped
from training.errors import InputError
from training.reproduce import progress, results, trained
from training.reproduce.experiments import EXPERIMENTS, arguments_of


def test_the_list_has_all_experiments(capsys):
    assert main(["reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, experiment in EXPERIMENTS.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert experiment.source in line and experiment.shows in line
        assert line.split()[1:3] == [
            str(experiment.minutes),
            str(experiment.quick_minutes),
        ]
        assert experiment.quick_minutes <= 5 and experiment.minutes <= 90


def test_a_misspelled_name_has_a_hint(capsys):
    with pytest.raises(SystemExit) as error:
        main(["reproduce", "langauge"])
    assert error.value.code == 2
    assert "Did you mean `language`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--quick"], "Name one of language"),
        (["penalty", "--work-dir", "{full}"], "must be a new folder"),
        (["penalty", "--work-dir", "{other}"], "holds another experiment"),
        (["penalty", "--work-dir", "{corrupt}"], "Remove"),
        (["language", "--quick", "--set", "sede=1", "--work-dir", "{new}"], "sede"),
        (
            [
                "vision",
                "--quick",
                "--set",
                "variants={{a: {{}}}}",
                "--work-dir",
                "{new}",
            ],
            "compares the variants weight_0, weight_06",
        ),
    ],
)
def test_bad_input_is_refused(arguments, words, tmp_path, capsys):
    for name, content in (("other", '{"state": {}}'), ("corrupt", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.json").write_text(content)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    places = {name: tmp_path / name for name in ("other", "corrupt", "full", "new")}
    command = ["reproduce", *(word.format(**places) for word in arguments)]
    assert main(command) == 2
    assert words in capsys.readouterr().err
    assert not places["new"].exists()


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("is_quick", [False, True])
def test_declared_variants_are_those_of_the_config(name, is_quick):
    chosen = arguments_of(name, is_quick)
    published = chosen["published"].values()
    known = configs.load(shipped.find(chosen["config"])).variants
    assert {variant for numbers in published for variant in numbers} <= set(known)
    keys = ("config", "variants", "overrides")
    arguments = {key: chosen[key] for key in keys if key in chosen}
    config = trained.resolved(**arguments)
    assert set(config.variants) == set(chosen.get("variants", known))


def test_finished_measurements_are_read_and_others_made(tmp_path, capsys):
    calls = []

    def measure(request):
        if request == "fails":
            raise ValueError(request)
        calls.append(request)
        return {"value": len(calls)}

    def run(requests):
        return progress.measured(tmp_path, requests, measure, lambda r: str(r["value"]))

    with pytest.raises(ValueError, match="fails"):
        run({"A: 1": "first", "B": "fails"})
    assert run({"A: 1": "first", "B": "second"}) == {
        "A: 1": {"value": 1},
        "B": {"value": 2},
    }
    assert calls == ["first", "second"]
    assert "2/2 B: 2" in capsys.readouterr().out
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(InputError, match="Remove .*b.json"):
        run({"B": "second"})


def test_a_deviation_joins_its_mean():
    row = {
        "network": "a",
        "loss": 1.5,
        "loss std": 0.25,
        "size": 12_345.0,
        "ours": None,
    }
    header, _, line = results.markdown([row]).splitlines()
    assert header == "| network | loss | size | ours |"
    assert line == "| a | 1.5 ± 0.25 | 12345 | - |"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_variants_run(name, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["reproduce", name, "--quick", "--work-dir", str(folder)]) == 0
    assert "Table, numbers and figure are in" in capsys.readouterr().out
    state = json.loads((folder / "experiment.json").read_text())["state"]
    assert state["name"] == name
    with open(folder / "numbers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    chosen = arguments_of(name, is_quick=True)
    assert len(rows) == len(chosen["variants"])
    assert all((folder / f"figure.{suffix}").is_file() for suffix in ("png", "svg"))
