"""The study of prefixes: its model, its measurements, and a short run."""

import csv
import json

import keras
import numpy as np
import pytest

import deq_keras
from training.config import reading as configs
from training.errors import InputError
from training.runs.work_directory import WorkDirectory
from training.studies import study_runs
from training.studies.prefixes import study
from training.studies.prefixes.model import build, measure

SHORT = {
    "experiment": "prefixes",
    "seeds": [3, 4],
    "length": 4,
    "train_examples": 512,
    "units": 8,
    "equilibrium": {"solver": {"class_name": "fixed_point_iteration", "max_iter": 8}},
    "optimizer": {"learning_rate": 1e-2},
    "measurement": {
        "lengths": [4, 7],
        "budgets": [2, 8],
        "examples": 50,
        "batch_size": 20,
    },
}


def config(**changes):
    return configs.resolve({**SHORT, **changes})


def test_has_the_weights_of_the_trial():
    model = build(config(units=48, activation="relu"), seed=0)
    assert model.get_layer("deq").count_params() == 3 * 49 * 48 + 4 * 3 * 48 * 48


class TestMeasure:
    def model(self, answer):
        """A model whose answers are known: its state is what `answer` makes of bits."""

        class Known(deq_keras.layers.EquilibriumCell):
            def inject(self, inputs, training=False):
                return answer(inputs)

            def call(self, state, injection):
                return injection

        bits = keras.Input((None, 1))
        deq = deq_keras.layers.DEQ(Known(), name="deq")
        return keras.Model(bits, keras.layers.Identity(name="parity")(deq(bits)))

    def test_a_string_is_right_if_all_parities_are(self):
        settings = config().measurement

        def parities(bits):
            odd = keras.ops.cumsum(bits + 0.5, axis=1) % 2
            return keras.ops.concatenate([1 - odd, odd], axis=-1)

        rows = measure(self.model(parities), settings, seed=0)
        assert [(row["length"], row["budget"]) for row in rows] == [
            (4, 2),
            (4, 8),
            (7, 2),
            (7, 8),
        ]
        assert {row["right"] for row in rows} == {100.0}
        assert {row["residual"] for row in rows} == {0.0}
        assert {row["evaluations"] for row in rows} == {2.0}

        def all_even(bits):
            return keras.ops.concatenate([bits * 0 + 1, bits * 0], axis=-1)

        rows = measure(self.model(all_even), settings, seed=0)
        # Of 4 bits one string in 16 has no one among them, of 7 one in 128.
        assert rows[0]["right"] < 20.0 and rows[2]["right"] < 10.0

    def test_strings_follow_from_the_seed(self):
        model = build(config(), seed=3)
        first, again, other = (
            measure(model, config().measurement, seed) for seed in (0, 0, 1)
        )
        assert first == again != other


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = WorkDirectory.start(tmp_path_factory.mktemp("prefixes"), config())
    study.run(directory.config, directory)
    return directory


@pytest.mark.slow
class TestRun:
    @pytest.mark.slow
    def test_learns(self, tmp_path):
        longer = config(train_examples=16384)
        directory = WorkDirectory.start(tmp_path / "run", longer)
        study.run(longer, directory)
        results = json.loads((directory.path / "results.json").read_text())
        assert [result["seed"] for result in results] == [3, 4]
        assert {result["updates"] for result in results} == {256}
        at_length = [result["solves"][1]["right"] for result in results]
        assert max(at_length) > 40.0  # By chance 6 %.

    def test_tables(self, finished):
        results = json.loads((finished.path / "results.json").read_text())
        summaries = json.loads((finished.path / "summary.json").read_text())
        row = summaries[1]
        right = [result["solves"][1]["right"] for result in results]
        assert (row["length"], row["budget"], row["runs"]) == (4, 8, 2)
        assert row["right_mean"] == pytest.approx(np.mean(right))
        assert row["smallest"] == min(right)
        with open(finished.path / "results.csv", newline="") as file:
            assert len(list(csv.DictReader(file))) == 8
        text = study.render(summaries).splitlines()
        assert len(text) == 1 + 4
        assert (finished.path / "report.txt").read_text().endswith(f"{text[-1]}\n")

    def test_finished_runs_are_kept(self, finished, monkeypatch):
        monkeypatch.setattr(study, "_trained", lambda *_: 1 / 0)
        study.run(finished.config, finished)

    def test_in_segments(self, tmp_path):
        """An update admits 8 of 512 strings; the model is that without the carry."""
        segments = {"in_search": 16, "max_segments": 3, "finished": None}
        settings = config(seeds=[3], batch_size=8, segments=segments)
        directory = WorkDirectory.start(tmp_path / "run", settings)
        study.run(settings, directory)
        (result,) = json.loads((directory.path / "results.json").read_text())
        assert result["updates"] == 64
        with open(directory.path / "seed-3" / "history.csv", newline="") as file:
            (epoch,) = csv.DictReader(file)
        # Half of the samples in search leave with each step: after two segments.
        assert float(epoch["segments"]) == pytest.approx(2.0, abs=0.1)
        model = study_runs.trained_model(directory, "seed-3")
        assert [layer.name for layer in model.layers] == ["bits", "deq", "parity"]
        rows = measure(model, settings.measurement, seed=3)
        assert rows == result["solves"]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"segments": {"in_search": 64}}, "in_search"),
        ({"equilibrium": {"gradient": {"class_name": "neumann", "num_terms": 0}}}, "0"),
        ({"optimizer": {"warmup_epochs": 1}}, "warmup_epochs"),
    ],
)
def test_what_cannot_be_used_is_refused_first(tmp_path, changes, words):
    directory = WorkDirectory.start(tmp_path / "run", config(**changes))
    with pytest.raises(InputError, match=words):
        study.run(directory.config, directory)
    assert not (tmp_path / "run").exists()
