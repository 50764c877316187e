"""The experiment `reasoning`: what is measured, and what may be asked for."""

import copy
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import deq_keras
from tests.training.runs.small_runs import eagerly
from training.config import reading as configs
from training.data.reasoning import Examples, PrefixSums, held_out_examples
from training.data.reasoning.dataset import in_batches, validation_batches
from training.errors import InputError
from training.evaluation.report import report
from training.experiments.reasoning.build import SmoothedCrossEntropy
from training.experiments.reasoning.job import ReasoningJob
from training.experiments.reasoning.level_measurement import (
    LevelMeasurement,
    overthinking,
)
from training.experiments.reasoning.schema import LevelConfig
from training.runs.train import train
from training.runs.work_directory import WorkDirectory

TINY = {
    "experiment": "reasoning",
    "tensorboard": False,
    "data": {
        "task": "mazes",
        "levels": [3, 5],
        "validation": [{"level": 3, "examples": 4}, {"level": 5, "examples": 4}],
        "test": [{"level": 5, "examples": 4}, {"level": 7, "examples": 5}],
        "updates_per_epoch": 2,
        "batch_size": 4,
        "evaluation_batch_size": 3,
    },
    "model": {
        "cell": {"class_name": "recall_cell", "filters": 4},
        "solver": {
            "class_name": "fixed_point_iteration",
            "max_iter": 12,
            "tol": 1e-3,
            "stop_mode": "rel_max",
        },
        "gradient": {
            "class_name": "truncated",
            "num_steps": "uniform",
            "max_steps": 4,
            "free_fraction": 1.0,
        },
    },
    "label_smoothing": 0.3,
    "phases": [{"epochs": 1}],
    "evaluation": {"budgets": [2, 20], "max_iter": 8, "num_samples": 2},
}
STRINGS = {
    "task": "prefix_sums",
    "levels": [4],
    "validation": [{"level": 4, "examples": 4}],
    "test": [{"level": 4, "examples": 20}, {"level": 6, "examples": 20}],
}


def config(**changes):
    """Returns the config of a tiny experiment after changes at dotted paths."""
    paths = [(path.replace("__", "."), value) for path, value in changes.items()]
    return configs.resolve(copy.deepcopy(TINY), paths)


def strings(**changes):
    return config(data=STRINGS, model__cell__rank=1, **changes)


def job(config, folder=None):
    return ReasoningJob(config, folder=folder)


@keras.saving.register_keras_serializable("tests")
class ParityCell(deq_keras.layers.EquilibriumCell):
    """z_i <- z_{i-1} s_i, with the sign s = -1 for a one and 1 for a zero.

    After n evaluations the first n positions hold the parities of their prefixes, and
    the others what the state n positions before them began with.
    """

    reach = 1

    def inject(self, inputs, training=False):
        del training
        return 1.0 - 2.0 * ops.cast(inputs, self.compute_dtype)

    def initial_state(self, injection):
        return ops.zeros_like(injection)

    def call(self, state, injection):
        before = ops.pad(state[:, :-1], [[0, 0], [1, 0], [0, 0]], constant_values=1.0)
        return before * injection


@pytest.fixture
def parity():
    """A reasoner that solves strings of any length, a position an evaluation."""
    solver = deq_keras.solvers.FixedPointIteration(30, 1e-3, "rel_max")
    backbone = deq_keras.models.ReasonerBackbone(
        ParityCell(name="cell"), (None, 1), solver=solver
    )
    model = deq_keras.models.ReasonerTagger(backbone, num_classes=2)
    model.head.set_weights([np.array([[1.0, -1.0]]), np.zeros(2)])
    return model


class TestLevel:
    @pytest.mark.slow
    def test_closed_form(self, parity):
        length, examples = 6, held_out_examples(PrefixSums(), 6, 25, 0)
        config, budgets = strings(data__evaluation_batch_size=10), [6, 3, 5, 7, 30]
        # Without a tolerance, the result is the last iterate.
        deq = parity.backbone.deq
        own, deq.solver = deq.solver, deq_keras.solvers.FixedPointIteration(30, None)
        found = LevelMeasurement(parity, config, budgets)(length, examples)
        assert (found["level"], found["examples"], found["floor"]) == (6, 25, 5)
        rows = {row["budget"]: row for row in found["budgets"]}
        assert list(rows) == [3, 5, 6, 7, 30]
        # Positions that no information has reached have the answer 0.
        arrived = np.arange(length)[:, None] < np.array([3, 5])
        answers = examples.targets[..., None] * arrived  # (examples, length, budgets)
        is_right = answers == examples.targets[..., None]
        for index, budget in enumerate((3, 5)):
            assert rows[budget]["exact_match"] == pytest.approx(
                is_right[..., index].all(axis=1).mean()
            )
            assert rows[budget]["accuracy"] == pytest.approx(
                is_right[..., index].mean()
            )
        for budget in (6, 7, 30):
            assert rows[budget]["exact_match"] == rows[budget]["accuracy"] == 1.0
        assert found["overthinking"] == rows[3]["exact_match"] - 1.0
        # The seventh evaluation changes nothing.
        deq.solver = own
        found = LevelMeasurement(parity, config, budgets)(length, examples)
        rows = {row["budget"]: row for row in found["budgets"]}
        assert [row["evaluations"] for row in rows.values()] == [3, 5, 6, 7, 7]
        assert [row["converged"] for row in rows.values()] == [0, 0, 0, 1, 1]
        assert rows[3]["residual"] > 0.1 and rows[7]["residual"] == 0.0
        assert found["evaluations"] == [7] * 25 and found["difficulty"] == [6] * 25
        assert found["correlation"] is None  # Neither varies.
        assert found["alignment"] == pytest.approx(1.0)
        assert found["agreement"] == 1.0
        assert found["restarts"] is None

    @pytest.mark.slow
    def test_restarts(self, parity):
        measure = LevelMeasurement(parity, strings(evaluation__restarts=3), [7])
        examples = held_out_examples(PrefixSums(), 6, 9, 0)
        assert measure(6, examples)["restarts"] == {
            "first": 1.0,
            "residual": 1.0,
            "vote": 1.0,
        }
        # With too small a budget each start has an answer of its own.
        parity.backbone.deq.solver = deq_keras.solvers.FixedPointIteration(3)
        measure = LevelMeasurement(parity, strings(evaluation__restarts=3), [3])
        few = measure(6, examples)
        assert few["restarts"]["first"] == few["budgets"][0]["exact_match"] < 1.0

    def test_without_a_tolerance(self, parity, no_graphs):
        parity.backbone.deq.solver = deq_keras.solvers.FixedPointIteration(6, None)
        examples = held_out_examples(PrefixSums(), 4, 8, 0)
        one_batch = strings(data__evaluation_batch_size=8)
        found = LevelMeasurement(parity, one_batch, [2, 20])(4, examples)
        assert [row["converged"] for row in found["budgets"]] == [0, 0]
        assert [row["evaluations"] for row in found["budgets"]] == [2, 20]
        exact = [row["exact_match"] for row in found["budgets"]]
        assert found["overthinking"] == exact[0] - exact[1]

    def test_overthinking_needs_tenfold_budgets(self):
        assert overthinking([2, 4], [0.5, 1.0]) is None
        assert overthinking([2, 20], [1.0, 0.25]) == 0.75


def test_evaluation_writes_tables_and_figures(parity, no_graphs, tmp_path, capsys):
    variant = strings(evaluation__budgets=[5, 7, 40], data__evaluation_batch_size=20)
    directory = WorkDirectory.start(tmp_path / "run", variant)
    with directory.in_use():
        evaluated = job(variant, directory.run("model"))
        rows = evaluated.evaluate(parity, variant.evaluation.budgets)["budgets"]
    assert [row["budget"] for row in rows] == [5, 7, 40]
    assert rows[1]["exact_match"] == 1.0 > rows[0]["exact_match"]  # All six bits.
    assert "level 4: 100.0% exact at NFE 5" in capsys.readouterr().out
    found = json.loads((evaluated.folder / "levels.json").read_text())
    assert [level["level"] for level in found["levels"]] == [4, 6]
    assert found["correlation"] == pytest.approx(1.0)  # Five and seven evaluations.
    assert (evaluated.folder / "accuracy.png").stat().st_size > 0
    text = report(directory)
    assert "exact answers [%] at NFE  level  floor      5      7     40" in text
    assert "model                         4      3  100.0  100.0  100.0" in text
    assert "over all levels: 1.00" in text
    (evaluated.folder / "levels.json").write_text('{"levels": [{}]}')
    with pytest.raises(InputError, match="levels.json.*deq-keras evaluate"):
        report(directory)


class TestBatches:
    @pytest.mark.parametrize("count", [2, 4, 7])
    def test_no_batch_has_a_single_example(self, count):
        examples = Examples(*[np.arange(count)] * 5)
        parts = in_batches(examples, 3)
        sizes = [len(part.inputs) for part in parts]
        assert min(sizes) >= 2 and max(sizes) <= 3
        np.testing.assert_array_equal(
            np.concatenate([part.difficulty for part in parts]), np.arange(count)
        )

    def test_validation_has_all_levels_and_no_test_examples(self):
        levels = [LevelConfig(level=4, examples=5), LevelConfig(level=6, examples=2)]
        batches = list(validation_batches(PrefixSums(), levels, 4, seed=0))
        assert [batch[0].shape[:2] for batch in batches] == [(4, 4), (1, 4), (2, 6)]
        test = held_out_examples(PrefixSums(), 6, 2, 0)
        assert np.any(test.inputs != batches[2][0])


def test_problems_depend_on_seed_and_step():
    def problems(seed, steps, split):
        (batch, *_), *_ = job(config(seed=seed)).feed.fit_arguments(steps)[split]
        return batch.numpy()

    whole = [batch for batch, *_ in job(config()).feed.fit_arguments(range(4))["x"]]
    assert len(whole) == 4
    # The second epoch begins with the third step.
    np.testing.assert_array_equal(problems(0, range(2, 4), "x"), whole[2])
    other = problems(1, range(2), "x")
    assert other.shape != whole[0].shape or np.any(other != whole[0])
    one, two = (problems(seed, range(1), "validation_data") for seed in (0, 1))
    np.testing.assert_array_equal(one, two)


class TestLoss:
    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_mean_over_weighted_positions(self, jit_compile):
        generator = np.random.default_rng(0)
        logits = generator.normal(size=(2, 3, 4)).astype("float32")
        labels = generator.integers(4, size=(2, 3))
        weights = np.array([[1, 0, 1], [0, 0, 1]], "float32")
        loss = SmoothedCrossEntropy(0.2)
        compiled = tf.function(loss, jit_compile=jit_compile)
        targets = 0.8 * np.eye(4)[labels] + 0.05
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = -(targets * log_p).sum(axis=-1)
        expected = (weights * expected).sum() / 3
        for value in (loss(labels, logits, weights), compiled(labels, logits, weights)):
            np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_two_updates(tmp_path):
    trained = job(config(), tmp_path)
    with eagerly():
        model, history = train(trained, tmp_path)
    assert set(history[0]) >= {"exact_match", "val_exact_match", "loss", "deq_residual"}
    assert {file.name for file in tmp_path.iterdir()} >= {"model.keras", "history.csv"}
    problems = trained.feed.batch_samples(model)[0]
    assert model.predict(problems, verbose=0).shape == (2, 7, 7, 2)


@pytest.mark.slow
def test_segments_resume(tmp_path):
    """The solves continue too, and the saved model is the reasoner itself."""
    changes = {
        "data__batch_size": 4,
        "segments": {"in_progress": 8, "max_segments": 3, "inherited": 0.5},
        "optimizer": {"schedule": "constant"},
    }

    def run(epochs, folder):
        folder.mkdir(exist_ok=True)
        return train(job(strings(**changes, phases__0__epochs=epochs), folder), folder)

    model, history = run(2, tmp_path / "whole")
    assert isinstance(model, deq_keras.models.ReasonerTagger)
    assert set(history[0]) >= {
        "segments",
        "finished",
        "val_exact_match",
        "deq_residual",
    }
    run(1, tmp_path / "parts")
    # The second epoch then looks unfinished.
    (tmp_path / "parts" / "model.keras").unlink()
    resumed, again = run(2, tmp_path / "parts")
    assert [row["loss"] for row in history] == [row["loss"] for row in again]
    np.testing.assert_equal(model.get_weights(), resumed.get_weights())
    best = keras.saving.load_model(tmp_path / "parts" / "best.keras")
    assert isinstance(best, deq_keras.models.ReasonerTagger)
