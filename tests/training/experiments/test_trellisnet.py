"""The experiment `trellisnet`, and the configs of the published runs."""

import copy
import csv
from pathlib import Path

import keras
import numpy as np
import pytest

from deq_keras import models
from deq_keras.tokenizers import CharacterTokenizer
from tests.training.experiments import small_texts
from tests.training.runs import small_runs
from training.cli import main
from training.config import reading as configs
from training.data.text import WordTokenizer
from training.errors import InputError
from training.experiments.language_model import text
from training.experiments.language_model.job import build_model as build_transformer
from training.experiments.trellisnet.job import TrellisNetJob, build_model
from training.runs.phases import phase_spans
from training.runs.train import enter_phase

FOLDER = Path(__file__).parents[3] / "configs"
SMALL = {
    **small_texts.SMALL,
    "experiment": "trellisnet",
    "model": {
        "hidden_dim": 8,
        "intermediate_dim": 8,
        "num_experts": 2,
        "solver": {"class_name": "anderson", "max_iter": 4},
    },
    "variants": {
        "equilibrium": {},
        "levels": {
            "model.explicit": {
                "num_layers": 4,
                "dilations": [1, 2],
                "auxiliary_frequency": 2,
                "recompute": True,
            }
        },
    },
}


def _built(**model):
    mapping = copy.deepcopy(SMALL)
    mapping["model"] |= model
    mapping.pop("variants")
    return build_model(configs.resolve(mapping), CharacterTokenizer(["a", "b", "c"]))


def test_configs_are_arguments():
    causal_lm = _built(
        num_experts=1, cutoffs=[2], kernel_size=3, dilation_rate=2, weight_dropout=0.5
    ).causal_lm
    cell = causal_lm.backbone.deq.cell
    assert (cell.units, cell.kernel_size, cell.dilation_rate) == (16, 3, 2)
    assert (cell.weight_dropout_rate, causal_lm.backbone.memory_length) == (0.5, 1)
    assert causal_lm.softmax.num_clusters == 1
    levels = _built(explicit={"num_layers": 3, "auxiliary_weight": 0.5}).causal_lm
    assert isinstance(levels, models.TrellisNetCausalLM)
    assert (levels.backbone.num_layers, levels.auxiliary_weight) == (3, 0.5)


@pytest.mark.parametrize(
    "model, words",
    [
        ({"embedding_dim": 4, "num_experts": 1}, "`model`: Embedding and softmax"),
        ({"kernel_size": 1}, "kernel_size"),
        ({"explicit": {"num_layers": 3, "dilations": []}}, "dilations"),
        ({"explicit": {"levels": 3}}, "levels"),
    ],
)
def test_what_does_not_fit_is_refused(model, words):
    with pytest.raises(InputError, match=words):
        _built(**model)


@pytest.mark.slow
def test_trains_both_variants_and_generates(tmp_path):
    mapping = copy.deepcopy(SMALL)
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be " * 40)
    mapping["data"]["path"] = str(path)
    directory = small_runs.finished(tmp_path / "run", configs.resolve(mapping))
    for name in ("equilibrium", "levels"):
        with (directory.run(name) / "history.csv").open() as lines:
            losses = [float(row["val_loss"]) for row in csv.DictReader(lines)]
        assert losses[-1] < losses[0]
    assert main(["report", str(directory.path)]) == 0
    model = keras.models.load_model(directory.run("equilibrium") / "model.keras")
    model.causal_lm.compile(sampler="greedy")
    assert model.causal_lm.generate("to be", max_length=12).startswith("to be")


def test_transformer_xl_is_a_model_of_its_own():
    path = FOLDER / "transformer_xl" / "wikitext103.yaml"
    small = ("hidden_dim=8", "num_heads=2", "intermediate_dim=8")
    config = configs.load(path, [f"model.{setting}" for setting in small])
    model = build_transformer(config, CharacterTokenizer(["a", "b", "c"]))
    assert isinstance(model.causal_lm, models.TransformerXLCausalLM)
    assert model.causal_lm.backbone.num_layers == 4
    with pytest.raises(InputError, match="Set one of them to null"):
        configs.load(path, ["model.explicit={num_layers: 3}"])


def _job(config, vocabulary_size):
    nothing = np.zeros(0, "int32")
    words = ["<eos>", *(f"{i}" for i in range(vocabulary_size - 1))]
    tokens = np.zeros(2**14, "int32")  # Enough to be cut into streams.
    loaded = text.Text(WordTokenizer(words), tokens, tokens, nothing)
    return TrellisNetJob(config, lambda: (loaded, None))


def _take_steps(config, vocabulary_size):
    """Takes a step of each phase; returns the model."""
    job = _job(config, vocabulary_size)
    model, optimizer, _ = job.build()
    shape = (config.data.batch_size, config.data.length + 1)
    tokens = np.random.default_rng(0).integers(0, vocabulary_size, shape)
    for span in phase_spans(config):
        enter_phase(job, model, span, optimizer)
        examples = model.examples(tokens[:, :-1], tokens[:, 1:])
        small_runs.take_step(model, *examples)
    return model


@pytest.mark.large
@pytest.mark.slow
# The gradient of a table that is embedding and softmax at once is dense anyway.
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices:UserWarning")
@pytest.mark.parametrize("variant", ["equilibrium", "levels"])
@pytest.mark.parametrize(
    "name, vocabulary_size, parameters",
    [("ptb", 10_000, 24_192_400), ("wikitext103", 267_735, 181_718_490)],
)
def test_published_runs_take_a_step(name, vocabulary_size, parameters, variant):
    settings = ["data.batch_size=2", "data.length=8", "data.path=."]
    config = configs.load(FOLDER / "trellisnet" / f"{name}.yaml", settings)
    model = _take_steps(configs.variant(config, variant), vocabulary_size)
    assert model.count_params() == parameters
    backbone = model.causal_lm.backbone
    cell = getattr(backbone, "deq", None) or backbone.segment_layer
    assert round(cell.count_params() / 1e6) == {"ptb": 20, "wikitext103": 44}[name]


@pytest.mark.large
@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, of_layers",
    [("small", 6.0), ("small_tied", 4.5), ("medium", 44.1), ("medium_adaptive", 72.0)],
)
def test_sizes_of_transformer_xl(variant, of_layers):
    path = FOLDER / "transformer_xl" / "wikitext103.yaml"
    config = configs.variant(configs.load(path), variant)
    tokenizer = WordTokenizer(["<eos>", *(f"{i}" for i in range(267_734))])
    model = build_transformer(config, tokenizer)
    count = model.causal_lm.backbone.segment_layer.count_params()
    assert count / 1e6 == pytest.approx(of_layers, abs=0.2)
