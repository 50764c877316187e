"""The experiment `trellisnet`."""

import copy

import keras
import pytest

from deq_keras import models
from deq_keras.tokenizers import CharacterTokenizer
from tests.training.experiments import small_texts
from tests.training.runs import small_runs
from training.cli import main
from training.config import reading as configs
from training.experiments.trellisnet import TrellisNetJob

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


def build(**model):
    mapping = copy.deepcopy(SMALL)
    mapping["model"] |= model
    mapping.pop("variants")
    job = TrellisNetJob(configs.resolve(mapping))
    return job.build_network(CharacterTokenizer(["a", "b", "c"])).causal_lm


def test_configs_are_arguments():
    causal_lm = build(
        num_experts=1, cutoffs=[2], kernel_size=3, dilation_rate=2, weight_dropout=0.5
    )
    cell = causal_lm.backbone.deq.cell
    assert (cell.units, cell.kernel_size, cell.dilation_rate) == (16, 3, 2)
    assert (cell.weight_dropout_rate, causal_lm.backbone.memory_length) == (0.5, 1)
    assert causal_lm.softmax.num_clusters == 1
    levels = build(explicit={"num_layers": 3, "auxiliary_weight": 0.5})
    assert isinstance(levels, models.TrellisNetCausalLM)
    assert (levels.backbone.num_layers, levels.auxiliary_weight) == (3, 0.5)


@pytest.mark.slow
def test_trains_and_generates(tmp_path):
    mapping = copy.deepcopy(SMALL)
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be " * 40)
    mapping["data"]["path"] = str(path)
    directory = small_runs.finished(tmp_path / "run", configs.resolve(mapping))
    for name in ("equilibrium", "levels"):
        first, *_, last = small_runs.history(directory.run(name))
        assert float(last["val_loss"]) < float(first["val_loss"])
    assert main(["report", str(directory.path)]) == 0
    model = keras.models.load_model(directory.run("equilibrium") / "model.keras")
    model.causal_lm.compile(sampler="greedy")
    assert model.causal_lm.generate("to be", max_length=12).startswith("to be")
