"""Configs that an experiment refuses, by the key that the message names."""

import pytest
import yaml

from tests.training.experiments.small_jobs import (
    CLASSIFICATION,
    COPY_MEMORY,
    DEFAULTS,
    MDEQ,
    MONOTONE,
    REASONING,
    SEGMENTATION,
    SYNTHETIC,
    TEXT,
    TRELLISNET,
    job,
)
from training.cli import main
from training.errors import InputError
from training.runs.train import build, check

# Config, key, value, and what the message names: by default the key.
MODELS = [
    (CLASSIFICATION, "model.cell.filters", "many", "filters"),
    (CLASSIFICATION, "model.stem.strides", 9, None),
    (CLASSIFICATION, "model.head.pool_size", 9, None),
    (CLASSIFICATION, "model.cell", "residual_cell", "Did you mean `residual_block"),
    (CLASSIFICATION, "model.solver", "andersen", "Did you mean 'anderson'"),
    (CLASSIFICATION, "model.solver", "inherit", None),
    (CLASSIFICATION, "model.solver.histroy", 3, "histroy"),
    (CLASSIFICATION, "model.gradient", {"class_name": "phantom", "damping": 0}, None),
    (CLASSIFICATION, "model.name", "mdeqs", None),
    (COPY_MEMORY, "model.num_heads", 5, "num_heads"),
    (COPY_MEMORY, "data.delay", 0, None),
    (DEFAULTS, "data.task", "parit", None),
    (DEFAULTS, "data.updates", 0, None),
    (DEFAULTS, "model.gradient", {"class_name": "neumann", "num_terms": 0}, "num_term"),
    (MDEQ, "model.groups", 3, "groups"),
    (MDEQ, "model.filters", [8, 8, 8, 8, 8], "model"),
    (MDEQ, "model.head_filters", [], None),
    (MDEQ, "model.initial_weights", "nothing.keras", None),
    (MDEQ, "model.explicit", {"network": "resnet_19"}, "model.explicit.network"),
    (MDEQ, "model.explicit", {"network": "resnet_18", "filters": 4}, "filters"),
    (MONOTONE, "model.cell", "residual_block_cell", None),
    (REASONING, "data.task", "maze", None),
    (REASONING, "data.levels", [4], "level"),
    (REASONING, "data.evaluation_batch_size", 2, None),
    (REASONING, "model.embedding_units", 4, None),
    (REASONING, "model.cell.rank", 1, "rank"),
    (REASONING, "evaluation.restarts", 1, None),
    (REASONING, "evaluation.picture", {"level": 6}, "level"),
    (SEGMENTATION, "data.crop_size", [16, 18], None),
    (SEGMENTATION, "data.image_size", [18, 32], None),
    (SEGMENTATION, "class_weights", [1.0, 2.0], None),
    (SEGMENTATION, "model.groups", 5, "model"),
    (SYNTHETIC, "evaluation.solvers", ["anderson"] * 2, None),
    (SYNTHETIC, "model.solver", {"class_name": "anderson", "history": 0}, None),
    (TEXT, "model.num_heads", 3, "num_heads"),
    (TRELLISNET, "model.kernel_size", 1, None),
]


@pytest.mark.parametrize("mapping, key, value, name", MODELS)
def test_model_that_cannot_be_built(mapping, key, value, name):
    with pytest.raises(InputError) as error:
        build(job(mapping, (key, value)))
    assert (name or key) in str(error.value) and "Received" in str(error.value)


# Each component is valid alone; only the training step of a phase shows the error.
STEPS = [
    (CLASSIFICATION, "phases.0.regularizer", "jacobain"),
    (REASONING, "segments", {"in_progress": 8}),
]


@pytest.mark.parametrize("mapping, key, value", STEPS)
def test_step_that_cannot_be_traced(mapping, key, value):
    with pytest.raises(InputError, match=key.rpartition(".")[0] or key):
        check(job(mapping, (key, value)))


def test_component_is_checked_before_data_are_loaded():
    one = job(CLASSIFICATION, ("model.solver", "andersen"))
    with pytest.raises(InputError, match="`model.solver`"):
        check(one)
    assert "data" not in vars(one)


def train(folder, mapping, *overrides):
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(mapping))
    sets = [part for override in overrides for part in ("--set", override)]
    return main(["train", str(file), "--work-dir", str(folder / "a" / "run"), *sets])


@pytest.mark.parametrize(
    "mapping, override, place",
    [
        (CLASSIFICATION, "model.solver.histroy=3", "histroy"),
        (CLASSIFICATION, "data={name: imagenette, directory: nowhere}", "imagenette"),
        (
            DEFAULTS,
            "variants={b: {model.solver: forward_backward}, a: {}}",
            "variant `b`",
        ),
        (
            DEFAULTS,
            "phases=[{epochs: 1}, {epochs: 1, gradient: reversible}]",
            "phases.1",
        ),
        (CLASSIFICATION, "optimizer.warmup_epochs=1", "optimizer.warmup_epochs"),
    ],
)
def test_refused_config_leaves_no_files(tmp_path, mapping, override, place, capsys):
    assert train(tmp_path, mapping, override) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("deq-keras: error:") and place in line
    assert not (tmp_path / "a").exists()
