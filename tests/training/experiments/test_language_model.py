"""The experiment `language_model`: losses, saved models and continued runs."""

import copy

import keras
import numpy as np
import pytest
from keras_hub.tokenizers import ByteTokenizer

from deq_keras import models
from tests.training.experiments.small_texts import SMALL
from tests.training.runs import small_runs
from training.cli import main
from training.config import reading as configs
from training.errors import InputError
from training.evaluation import plots
from training.experiments.language_model import text
from training.experiments.language_model.job import LanguageModelJob
from training.runs import variants
from training.runs.train import train
from training.runs.work_directory import WorkDirectory


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be " * 24)
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
    mapping["data"] |= {"path": text_file, "steps_per_epoch": 2}
    mapping["model"]["solver"] = {"class_name": "fixed_point_iteration", "max_iter": 4}
    mapping["model"]["regularizer"] = None
    mapping["optimizer"]["learning_rate"] = 0.1
    mapping["variants"] = {
        "equilibrium": {},
        "untied": {"model.explicit": {"num_layers": 2, "recompute": True}},
    }
    path = tmp_path_factory.mktemp("run") / "run"
    with small_runs.eagerly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_save", lambda figure, path: None)
        return small_runs.finished(path, configs.resolve(mapping))


def history(directory, name):
    return small_runs.history(directory.run(name))


def evaluation(directory, name):
    return small_runs.evaluation(directory.run(name))


def test_losses_and_weights_of_a_run(finished):
    for name in ("equilibrium", "untied"):
        losses = [float(row["val_loss"]) for row in history(finished, name)]
        assert len(losses) == 2
        assert losses[1] < losses[0] < np.log(7) + 0.5
    for row in history(finished, "equilibrium"):
        assert 0 < float(row["deq_spectral_radius"]) < 10
        assert 0 < float(row["deq_jacobian_norm"]) < 10
    assert "deq_spectral_radius" not in history(finished, "untied")[0]
    tied, untied = (
        evaluation(finished, name)["parameters"] for name in ("equilibrium", "untied")
    )
    assert 900 < tied < untied < 2 * tied


def test_loss_at_the_trained_budget_equals_validation(finished):
    result = evaluation(finished, "equilibrium")
    assert [row["budget"] for row in result["budgets"]] == [1, 4]
    row = result["budgets"][1]
    # The mean over tokens, not over segments: the last segment is shorter.
    last = float(history(finished, "equilibrium")[-1]["val_perplexity"])
    assert row["perplexity"] == pytest.approx(last, rel=1e-4)
    assert row["perplexity"] == pytest.approx(np.exp(row["loss"]), rel=1e-5)
    (row,) = evaluation(finished, "untied")["budgets"]
    assert row["budget"] == 2 and row["residual"] is None
    last = float(history(finished, "untied")[-1]["val_perplexity"])
    assert row["perplexity"] == pytest.approx(last, rel=1e-4)
    assert not (finished.run("untied") / "diagnosis.json").exists()


def test_saved_model_generates(finished, capsys):
    model = keras.saving.load_model(finished.run("equilibrium") / "model.keras")
    assert isinstance(model.causal_lm, models.DEQTransformerCausalLM)
    assert model.causal_lm.backbone.vocabulary_size == 7
    files = set(finished.path.rglob("*"))
    command = ["generate", str(finished.path), "--prompt", "to be"]
    assert main(command) == 2
    assert "one --variant of equilibrium, untied" in capsys.readouterr().err
    command += ["--variant", "equilibrium", "--max-length", "12"]
    with small_runs.eagerly():
        assert main(command) == 0
    text = capsys.readouterr().out.removesuffix("\n")
    assert len(text) == 12 and text.startswith("to be")
    assert set(text) <= set("to be rn")
    assert set(finished.path.rglob("*")) == files


@pytest.mark.slow
def test_resumed_run_equals_uninterrupted(small, tmp_path):
    """With epochs that are parts of the text, each going on where the last stopped."""
    small["data"]["steps_per_epoch"] = 7
    small["phases"] = [{"epochs": 3}]
    small["model"]["dropout"] = 0.1
    config = configs.resolve(small)
    whole = small_runs.finished(tmp_path / "whole", config)
    parts = WorkDirectory.start(tmp_path / "parts", config)
    job = variants.make_jobs(parts, ["model"])["model"]
    make = job.make_callbacks
    job.make_callbacks = lambda model: [*make(model), small_runs.die_in(2)]
    with parts.in_use(), pytest.raises(small_runs.Killed):
        train(job, parts.run("model"))
    parts = small_runs.finish(WorkDirectory.resume(tmp_path / "parts", config))
    small_runs.assert_same_checkpoints(parts.run("model"), whole.run("model"))


@pytest.mark.parametrize("steps_per_epoch", [5, None])
def test_epochs_continue_in_the_text(small, steps_per_epoch):
    small["data"]["steps_per_epoch"] = steps_per_epoch
    config = configs.resolve(small).data
    ids = text.find(config).train
    first = text.training_segments(config, ids)
    second = text.training_segments(config, ids, first_step=5)
    for (x, _), (y, _) in zip(first.skip(5).take(5), second.take(5), strict=True):
        np.testing.assert_array_equal(x["token_ids"], y["token_ids"])


def build(mapping):
    job = LanguageModelJob(configs.resolve(mapping))
    return job.build_network(ByteTokenizer(lowercase=False)).causal_lm


def test_configs_are_arguments(small):
    small["model"] |= {"normalize_first": True, "dropout": 0.1, "local_size": 5}
    backbone = build(small).backbone
    assert backbone.normalize_first
    assert (backbone.dropout, backbone.local_size) == (0.1, 5)
    assert backbone.deq.solver.max_iter == 4


def test_transformer_xl_replaces_the_equilibrium(small):
    small["model"]["transformer_xl"] = {"num_layers": 3}
    causal_lm = build(small)
    assert isinstance(causal_lm, models.TransformerXLCausalLM)
    assert causal_lm.backbone.num_layers == 3
    small["model"]["explicit"] = {"num_layers": 3}
    with pytest.raises(InputError, match="explicit.*transformer_xl.*Received"):
        build(small)


@pytest.mark.slow
def test_seed_after_another_equals_its_own_run(small, tmp_path):
    """The shared model has the memory and the phase of the run before."""
    small["phases"] = [{"name": "first", "epochs": 1, "gradient": "phantom"}]
    small["phases"].append({"name": "second", "epochs": 1})
    results = []
    for seeds in ([0, 1], [1]):
        path = tmp_path / str(len(seeds))
        config = configs.resolve({**small, "seeds": seeds})
        directory = small_runs.finished(path, config)
        folder = directory.folder("model/seed_1")
        files = ("evaluation.json", "diagnosis.json")
        results.append([(folder / file).read_text() for file in files])
    assert results[0] == results[1]


def test_validation_after_more_epochs_than_there_are_raises(small):
    """A phase in steps has as many epochs as the text determines."""
    small["data"]["steps_per_epoch"] = 5
    small["phases"] = [{"epochs": 1}, {"steps": 11}]
    small["evaluation"]["every_epochs"] = 5
    job = LanguageModelJob(configs.resolve(small))
    with pytest.raises(InputError, match="`evaluation.every_epochs` must be at most 4"):
        job.feed.fit_arguments(range(1))
