"""`deq-keras reproduce`: the list, resumption, tables, bad input, quick variants."""

import csv
import json

import pytest

from training.cli import main
from training.config import reading as configs
from training.config import shipped
from training.errors import InputError
from training.reproduce import memory, progress, results, runtime, trained
from training.reproduce.experiments import EXPERIMENTS, MEMORY, RUNTIME, arguments_of

TRAINED = [name for name, one in EXPERIMENTS.items() if "config" in one.full]


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
        main(["reproduce", "memroy"])
    assert error.value.code == 2
    assert "Did you mean `memory`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--quick"], "Name one of memory"),
        (["memory", "--set", "a=1"], "has no config that --set could change"),
        (["memory", "--work-dir", "{full}"], "must be a new folder"),
        (["memory", "--work-dir", "{other}"], "holds another experiment"),
        (["memory", "--work-dir", "{corrupt}"], "Remove"),
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


@pytest.mark.parametrize("cases", [MEMORY, RUNTIME], ids=["memory", "runtime"])
def test_measurements_have_files_of_their_own(cases):
    names = [f"{getattr(case, 'group', '')}: {case.label}" for case in cases]
    assert len(set(map(progress._file_name, names))) == len(cases)


@pytest.mark.parametrize("name", TRAINED)
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


# MiB by family, with a state of one.
STEPS = {"unrolled_transformer": 5.0, "transformer_xl": 3.0, "deq_transformer": 40.0}


def _fake_measure(case, scale, images):
    layers = case.network.get("num_layers", 1)
    step = layers * STEPS[case.network["family"]]
    return {"step": step, "state": 1.0, "weights": 2_000_000}


def test_memory_writes_a_table_numbers_and_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "_measure", _fake_measure)
    command = ["reproduce", "memory", "--quick", "--work-dir", str(tmp_path / "run")]
    assert main(command) == 0
    table = (tmp_path / "run" / "table.md").read_text()
    for words in ("`deq-keras reproduce memory --quick`", "* **Commit**: ", "1/5 of"):
        assert words in table
    with open(tmp_path / "run" / "numbers.csv", newline="") as file:
        rows = {row["network"]: row for row in csv.DictReader(file)}
    row = rows["DEQ-Transformer, Broyden 31 + 40"]
    assert float(row["relative"]) == pytest.approx(40 / (16 * 3))
    assert float(row["published relative"]) == pytest.approx(1.1 / 6.8)
    assert float(row["weights [M]"]) == 2
    for suffix in ("png", "svg"):
        assert (tmp_path / "run" / f"figure.{suffix}").stat().st_size > 1000
    # All is there: nothing is measured again.
    monkeypatch.setattr(memory, "_measure", None)
    assert main(command) == 0
    assert (tmp_path / "run" / "table.md").read_text() == table
    assert main([word for word in command if word != "--quick"]) == 2
    assert "other --quick" in capsys.readouterr().err


def test_memory_that_the_allocator_does_not_see_is_refused(tmp_path, monkeypatch):
    flat = {"step": 7.0, "state": 1.0, "weights": 1}
    monkeypatch.setattr(memory, "_measure", lambda *arguments: flat)
    with pytest.raises(InputError, match="not measurable here"):
        memory.run(tmp_path, MEMORY[:3], scale=5)


def test_runtime_marks_disturbed_measurements(tmp_path, monkeypatch):
    numbers = {"median": 2.0, "lower": 1.5, "upper": 2.5, "seconds": 0.1}
    found = {
        "training": {**numbers, "other processors": 0.5},
        "inference": {**numbers, "other processors": 0.0},
    }
    requests = []

    def fake(name, request):
        requests.append((name, json.loads(json.dumps(request))))
        return found

    monkeypatch.setattr(runtime, "in_fresh_process", fake)
    made = runtime.run(tmp_path, RUNTIME[:2], scale=5, effort={"seconds": 0.0})
    assert [name for name, _ in requests] == [".reproduce.runtime.ratios"] * 2
    assert requests[0][1]["explicit"] == RUNTIME[0].explicit
    first, second = made.rows
    assert first["training published"] == 2.4 and second["inference published"] == 1.76
    assert first["training quartiles"] == "1.50 to 2.50 \\*"
    assert first["inference quartiles"] == "1.50 to 2.50"
    assert made.draw(made.rows).axes


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
    expected = [chosen.get(key) for key in ("cases", "pairs", "variants")]
    (expected,) = filter(None, expected)
    assert len(rows) == len(expected)
    assert all((folder / f"figure.{suffix}").is_file() for suffix in ("png", "svg"))
    if name == "memory":
        peaks = {row["network"]: float(row["step [MiB]"]) for row in rows}
        deq = peaks["DEQ-Transformer, Broyden 31 + 40"]
        assert deq < 0.5 * peaks["16 tied layers"]
