import copy
import json

import keras
import numpy as np
import pytest

from deq_keras import models
from training import config as configs
from training.cli import main
from training.errors import InputError
from training.experiments import language_model
from training.experiments.language_model import job, text
from training.work_directory import WorkDirectory

SMALL = {
    "experiment": "language_model",
    "tensorboard": False,
    "data": {
        "source": "file",
        "batch_size": 4,
        "length": 8,
        "evaluation_batch_size": 2,
        "evaluation_length": 8,
    },
    "model": {
        "hidden_dim": 8,
        "num_heads": 2,
        "intermediate_dim": 16,
        "memory_length": 4,
        "solver": {"class_name": "anderson", "max_iter": 4},
    },
    "optimizer": {"learning_rate": 0.02, "clip_norm": 1.0},
    "phases": [{"epochs": 2}],
    "evaluation": {"budgets": [1, 4]},
}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be " * 40)
    return str(path)


@pytest.fixture
def small(text_file):
    mapping = copy.deepcopy(SMALL)
    mapping["data"]["path"] = text_file
    return mapping


@pytest.fixture(scope="module")
def finished(text_file, tmp_path_factory):
    """The work directory of a model and its explicit twin, trained for seconds."""
    mapping = copy.deepcopy(SMALL)
    mapping["data"]["path"] = text_file
    tied = {
        "model.solver": {
            "class_name": "fixed_point_iteration",
            "max_iter": 3,
            "tol": None,
        },
        "model.gradient": "unrolled",
        "model.jacobian_regularizer": None,
    }
    mapping["variants"] = {"equilibrium": {}, "tied": tied}
    path = tmp_path_factory.mktemp("run") / "run"
    directory = WorkDirectory.start(path, configs.resolve(mapping))
    language_model.run(directory.config, directory)
    return directory


class TestRun:
    def test_learns(self, finished):
        history = (finished.run("equilibrium") / "history.csv").read_text()
        columns, *rows = [line.split(",") for line in history.splitlines()]
        losses = [float(row[columns.index("val_loss")]) for row in rows]
        assert len(losses) == 2
        assert losses[1] < losses[0] < np.log(7) + 0.5

    def test_loss_at_the_trained_budget_is_that_of_the_last_epoch(self, finished):
        for name in ("equilibrium", "tied"):
            file = finished.run(name) / "evaluation.json"
            result = json.loads(file.read_text())
            assert [row["budget"] for row in result["budgets"]] == [1, 4]
            assert result["parameters"] > 900
        file = finished.run("equilibrium") / "evaluation.json"
        result = json.loads(file.read_text())
        row = result["budgets"][1]
        # The mean over tokens, not over segments: the last segment is shorter.
        assert row["loss"] == pytest.approx(result["validation_loss"], abs=0.1)
        assert row["perplexity"] == pytest.approx(np.exp(row["loss"]), rel=1e-5)

    def test_the_model_is_saved(self, finished):
        model = keras.saving.load_model(finished.run("equilibrium") / "model.keras")
        assert isinstance(model.causal_lm, models.DEQTransformerCausalLM)
        assert model.causal_lm.backbone.vocabulary_size == 7

    def test_a_finished_run_is_only_loaded(self, finished, capsys):
        language_model.run(finished.config, finished)
        assert "Epoch" not in capsys.readouterr().out


def test_text_is_cut_into_streams(small, tmp_path):
    config = configs.resolve(small).data
    loaded = text.load(config, tmp_path)
    assert (tmp_path / "vocabulary.character.json").is_file()
    segments = list(text.training_segments(config, loaded.train))
    inputs = np.concatenate([x["token_ids"] for x, _ in segments], axis=1)
    length = inputs.shape[1]
    streams = loaded.train[: len(loaded.train) // 4 * 4].reshape(4, -1)
    np.testing.assert_array_equal(inputs, streams[:, :length])
    for x, y in segments:
        np.testing.assert_array_equal(x["targets"], y)


def test_published_names_reach_the_model(small):
    small["model"] |= {"normalize_first": True, "dropout": 0.1, "local_size": 5}
    config = configs.resolve(small)
    backbone = job.build_model(config, 7).causal_lm.backbone
    assert backbone.normalize_first
    assert (backbone.dropout, backbone.local_size) == (0.1, 5)
    assert backbone.deq.solver.max_iter == 4


@pytest.mark.parametrize(
    "path, value, words",
    [
        ("model.num_heads", 3, "`model`.*num_heads"),
        ("model.solver.histroy", 3, "histroy"),
        ("data.path", None, "needs a `data.path`"),
        ("data.batch_size", 400, "too short"),
        ("model.hiden_dim", 3, "Did you mean `model.hidden_dim`"),
    ],
)
def test_what_cannot_be_made_is_refused(small, tmp_path, path, value, words):
    with pytest.raises(InputError, match=words):
        config = configs.resolve(small, [(path, value)])
        directory = WorkDirectory.start(tmp_path / "run", config)
        language_model.run(config, directory)


def test_cli_refuses_a_second_kind_of_command(small, tmp_path, capsys):
    directory = WorkDirectory.start(tmp_path / "run", configs.resolve(small))
    assert main(["evaluate", str(directory.path)]) == 2
    assert "experiment `language_model`" in capsys.readouterr().err
