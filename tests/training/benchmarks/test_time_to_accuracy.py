"""Trainings end at the target, and their models are comparable."""

import functools
import itertools
import json
import time

import keras
import numpy as np
import pytest

import deq_keras
from tests.regimes import slow
from training.benchmarks import runner
from training.benchmarks import time_to_accuracy as benchmark
from training.benchmarks.time_to_accuracy import (
    CONTESTS,
    DEQ,
    MODELS,
    TIED,
    UNTIED,
    Contest,
    Examples,
    ExplicitLayers,
    Training,
)
from training.cli import main

# The labels are the signs of the first input: any network learns them.
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(40, 3)).astype("float32")
EXAMPLES = Examples(INPUTS, (INPUTS[:, 0] > 0).astype("int32"))


def small(**changes):
    build = functools.partial(
        benchmark._of_cell,
        encode=lambda inputs, units: inputs,
        decode=lambda state: keras.layers.Dense(2)(state),
        cell=(6, deq_keras.layers.DenseCell),
        narrow_cell=(3, deq_keras.layers.DenseCell),
    )
    values = {
        "load": lambda training, held_out, directory: (EXAMPLES, EXAMPLES),
        "build": build,
        "depth": 4,
        "batch_size": 8,
        "learning_rate": 0.05,
        "target": 100.1,
        "every": 2,
        "max_updates": 5,
        "narrow_state": 3,
    }
    return Contest(**{**values, **changes})


def trained(contest, kind=TIED, seed=0):
    keras.utils.set_random_seed(seed)
    model = contest.build(kind, contest.depth, EXAMPLES)
    return Training(model, contest).run(EXAMPLES, EXAMPLES, seed)


@pytest.mark.parametrize(
    "name", [name if name == "digits" else slow(name) for name in CONTESTS]
)
def test_networks_of_a_contest_are_comparable(name):
    contest = CONTESTS[name]
    if name == "cifar10":
        images = np.zeros((2, 32, 32, 3), "uint8")
        training = Examples(images, np.zeros(2, "int32"))
    else:
        training, _ = contest.load(2 * contest.batch_size, 64, None)
    models = {kind: contest.build(kind, contest.depth, training) for kind in MODELS}
    counts = {kind: model.count_params() for kind, model in models.items()}
    assert counts[TIED] == counts[DEQ]
    assert counts[UNTIED] == pytest.approx(counts[DEQ], rel=0.03)
    deq = Training(models[DEQ], contest).deq
    # The defaults of `DEQ` and of the backbone of a language model.
    is_language = name == "characters"
    gradient = "NeumannGradient" if is_language else "TruncatedGradient"
    assert type(deq.gradient).__name__ == gradient
    assert deq.regularizer is not None


def test_tied_layers_are_an_unrolled_equilibrium():
    cell = deq_keras.layers.DenseCell(6)
    unrolled = deq_keras.layers.DEQ(
        cell,
        solver={"class_name": "fixed_point_iteration", "max_iter": 4, "tol": None},
        gradient="unrolled",
        regularizer=None,
    )
    np.testing.assert_allclose(
        ExplicitLayers([cell], 4)(INPUTS), unrolled(INPUTS), atol=1e-6
    )


def test_untied_layers_are_applied_in_order():
    cells = [deq_keras.layers.DenseCell(6) for _ in range(3)]
    layer = ExplicitLayers(cells, 3)
    found = layer(INPUTS)
    state = cells[0].initial_state(cells[0].inject(INPUTS))
    for cell in cells:
        state = cell(state, cell.inject(INPUTS))
    np.testing.assert_allclose(found, state, atol=1e-6)
    assert len(layer.trainable_variables) == sum(
        len(cell.trainable_variables) for cell in cells
    )


@pytest.mark.parametrize(
    "kind", [kind if kind == DEQ else slow(kind) for kind in MODELS]
)
def test_training_ends_at_the_target(kind):
    contest = small(target=90.0, max_updates=200)
    found = trained(contest, kind)
    assert found["reached"] and found["best_accuracy"] >= 90.0
    assert found["updates"] < 200 and found["updates"] % contest.every == 0
    assert found["seconds"] > 0 and found["compile_seconds"] > 0
    if kind == DEQ:
        assert found["updates"] < found["evaluations"] <= 30 * found["updates"]
    else:
        assert found["evaluations"] == contest.depth * found["updates"]


def test_training_without_the_target_tells_its_best_accuracy(monkeypatch):
    accuracies = iter([60.0, 50.0])
    monkeypatch.setattr(Training, "_accuracy", lambda *_: next(accuracies))
    found = trained(small())
    assert not found["reached"]
    assert (found["updates"], found["best_accuracy"]) == (5, 60.0)


def test_time_of_checks_does_not_count(monkeypatch):
    monkeypatch.setattr(Training, "_accuracy", lambda *_: time.sleep(1.0) or 0.0)
    assert trained(small(every=1, max_updates=3))["seconds"] < 1.0


def test_order_of_examples_depends_on_the_seed_only():
    def first_epoch(seed):
        batches = benchmark._batches(EXAMPLES, 8, seed)
        return [targets for _, targets in itertools.islice(batches, 5)]

    def order(seed):
        batches = benchmark._batches(Examples(np.arange(40), INPUTS), 8, seed)
        return np.concatenate([rows for rows, _ in itertools.islice(batches, 5)])

    np.testing.assert_array_equal(first_epoch(0), first_epoch(0))
    np.testing.assert_array_equal(np.sort(order(0)), np.arange(40))
    assert not np.array_equal(order(0), order(1))


def test_seeds_without_the_target_count_as_longest():
    runs = [
        {"reached": True, "seconds": 9.0},
        {"reached": False, "seconds": 5.0},
        {"reached": True, "seconds": 3.0},
    ]
    found = benchmark.summary(runs)
    assert found["reached"] == "2 of 3"
    assert found["median_seconds"] == 9.0
    assert found["seconds"] == [9.0, 5.0, 3.0]
    runs[0]["reached"] = False
    assert benchmark.summary(runs)["median_seconds"] == benchmark.NOT_REACHED


def test_models_take_turns(monkeypatch, capsys):
    def run(self, training, held_out, seed):
        return {
            "reached": seed == 1,
            "seconds": 3.0 + seed,
            "updates": 4,
            "best_accuracy": 50.0,
        }

    monkeypatch.setitem(CONTESTS, "small", small())
    monkeypatch.setattr(Training, "run", run)
    monkeypatch.setattr(benchmark, "step_peak", lambda *_: 2.5)
    effort = runner.Effort(seconds=1.0)
    found = benchmark.measure("small", effort, seeds=2)
    lines = capsys.readouterr().err.splitlines()
    turns = [line.split(":")[0] for line in lines]
    assert turns == [
        f"small, {kind}, seed {seed}" for seed in range(2) for kind in MODELS
    ]
    assert set(found) == {"target", *MODELS}
    for kind in MODELS:
        assert found[kind]["reached"] == "1 of 2"
        assert found[kind]["median_seconds"] == benchmark.NOT_REACHED
        assert found[kind]["seconds"] == [3.0, 4.0]
        assert found[kind]["peak_mib"] == 2.5
    assert found[TIED]["parameters"] == found[DEQ]["parameters"]


def test_absent_data_are_reported(monkeypatch, tmp_path, capsys):
    import tensorflow_datasets

    def builder(name):
        return tensorflow_datasets.builder_cls(name)(data_dir=tmp_path)

    monkeypatch.setattr(tensorflow_datasets, "builder", builder)
    out = tmp_path / "results.json"
    command = ["benchmark", "time_to_accuracy", "--only", "cifar10"]
    assert main([*command, "--out", str(out)]) == 0
    message = json.loads(out.read_text())["cifar10"]
    assert message.startswith("not measured: cifar10 is not on this machine")
    captured = capsys.readouterr()
    assert "--cifar10 DIR" in captured.err and "not measured" in captured.out


def test_absent_folder_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["benchmark", "time_to_accuracy", "--cifar10", "/nowhere"])
    assert "the folder '/nowhere' does not exist" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "characters", "parity"])
def test_quick_measurement(name, tmp_path):
    out = tmp_path / "results.json"
    command = ["benchmark", "time_to_accuracy", "--quick", "--seeds", "1"]
    assert main([*command, "--only", name, "--out", str(out)]) == 0
    found = json.loads(out.read_text())[name]
    for kind in MODELS:
        assert found[kind]["reached"] in ("0 of 1", "1 of 1")
        assert len(found[kind]["updates"]) == 1 and found[kind]["updates"][0] <= 4
        assert found[kind]["peak_mib"] == benchmark.NOT_MEASURABLE or (
            found[kind]["peak_mib"] > 0
        )
