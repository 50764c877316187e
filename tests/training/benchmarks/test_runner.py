"""The runner: collection by name, command line, table and JSON."""

import json

import pytest

from training import machine
from training.benchmarks import MODULES, runner
from training.benchmarks.measuring import Duration, Effort, Ratio, plain
from training.cli import main

EFFORT = Effort(seconds=0.0, min_rounds=2, attempts=1)
DURATION = Duration(3.0, 2.5, 3.5, rounds=7, other_processors=0.0)
RATIO = Ratio(1.5, 1.25, 1.75, DURATION, DURATION._replace(median=2.0))


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_has_measurements(name, capsys):
    benchmark = runner.find(name)
    assert benchmark.measurements
    assert set(benchmark.optional) < set(benchmark.measurements)
    with pytest.raises(SystemExit) as error:
        main(["benchmark", name, "--help"])
    assert error.value.code == 0
    assert f"deq-keras benchmark {name}" in capsys.readouterr().out


@pytest.fixture
def fake(monkeypatch):
    benchmark = runner.Benchmark(
        "Measures.",
        {
            "ratio": lambda effort, size=1: {"small": {**RATIO._asdict(), "n": size}},
            "rounds": lambda effort: {"count": effort.min_rounds},
            "slow": lambda effort: 1 / 0,
        },
        optional=("slow",),
        add_arguments=lambda parser: parser.add_argument("--size", type=int, default=2),
    )
    monkeypatch.setattr(runner, "find", lambda name: benchmark)


def test_command_prints_a_table_and_writes_json(fake, tmp_path, capsys):
    out = tmp_path / "results.json"
    assert main(["benchmark", "mdeq", "--quick", "--size", "5", "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    assert set(results) == {"environment", "ratio", "rounds"}
    assert results["rounds"] == {"count": 2}
    assert results["ratio"]["small"] == {**plain(RATIO), "n": 5}
    assert {"time", "commit", "processor", "versions"} <= set(results["environment"])
    lines = capsys.readouterr().out.splitlines()
    assert results["environment"]["time"] in lines[0]
    assert machine.assignments(machine.settings()) in lines[0]
    rows = [line.split() for line in lines]
    assert ["ratio,", "small", "1.5", "1.25–1.75", "3", "/", "2", "n", "5"] in rows


def test_only_chosen_measurements_run(fake, capsys):
    with pytest.raises(ZeroDivisionError):
        main(["benchmark", "mdeq", "--only", "slow"])
    assert main(["benchmark", "mdeq", "--only", "rounds"]) == 0
    assert "ratio, small" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "words"),
    [("missing/directory/file.json", "create it first"), (".", "is a directory")],
)
def test_output_that_cannot_be_written_is_refused(fake, path, words, capsys):
    with pytest.raises(SystemExit):
        main(["benchmark", "mdeq", "--out", path])
    assert words in capsys.readouterr().err


def rows(results):
    environment = {**machine.environment(), "settings": machine.settings()}
    text = runner.table({"environment": environment, **plain(results)})
    return [line.rstrip() for line in text.splitlines()[2:-2]]


def test_rows_of_a_table():
    disturbed = RATIO._replace(numerator=DURATION._replace(other_processors=0.5))
    missed = {**disturbed._asdict(), "bound": "<= 1.20", "met": False}
    results = {"solve": {"anderson": missed, "f": DURATION, "residual": 0.1}}
    assert rows(results) == [
        "measurement      median  quartiles  time [ms]  bound            other numbers",
        "solve                                                           residual 0.1",
        "solve, anderson  1.5     1.25–1.75  3 / 2 *    <= 1.20: MISSED",
        "solve, f                 2.5–3.5    3",
    ]


def test_columns_without_entries_are_left_out():
    assert rows({"memory": {6: 70.0, 60: 72.5}}) == [
        "measurement  other numbers",
        "memory       6 70, 60 72.5",
    ]
