"""The experiment `copy_memory`."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.training.runs import small_runs
from training.config import reading as configs
from training.errors import InputError
from training.experiments.copy_memory.build import build_network, copy_memory
from training.experiments.copy_memory.job import CopyMemoryJob

FOLDER = Path(__file__).parents[3] / "configs" / "copy_memory"


def test_sequences_are_those_of_the_task():
    inputs, targets = copy_memory(50, delay=30, seed=0)
    assert inputs.shape == targets.shape == (50, 50)
    copied = inputs[:, :10]
    assert set(np.unique(copied)) == set(range(1, 9))
    np.testing.assert_array_equal(inputs[:, 10:39], 0)
    np.testing.assert_array_equal(inputs[:, 39:], 9)
    np.testing.assert_array_equal(targets[:, :40], 0)
    np.testing.assert_array_equal(targets[:, 40:], copied)
    again, other = copy_memory(50, 30, 0)[0], copy_memory(50, 30, 1)[0]
    np.testing.assert_array_equal(inputs, again)
    assert np.any(inputs != other)


@pytest.mark.parametrize(
    "name, parameters",
    [("deq_transformer", 14_538), ("tcn", 16_070), ("lstm", 13_770), ("gru", 13_902)],
)
def test_published_sizes(name, parameters):
    config = configs.variant(configs.load(FOLDER / "published.yaml"), name)
    assert config.data.delay == 400
    model = build_network(config.model, "float32")
    assert model.count_params() == parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tcn", "gru"])
def test_nothing_ahead_is_seen(name):
    config = configs.variant(configs.load(FOLDER / "quick.yaml"), name)
    model = build_network(config.model, "float32")
    inputs, _ = copy_memory(2, 5, 0)
    changed = inputs.copy()
    changed[:, 12:] = 3
    outputs = model(inputs)[:, :12], model(changed)[:, :12]
    np.testing.assert_allclose(*outputs, atol=1e-3)


def test_what_does_not_fit_is_refused():
    settings = ["model.num_heads=5"]
    config = configs.load(FOLDER / "quick.yaml", settings)
    with pytest.raises(InputError, match="num_heads"):
        build_network(config.model, "float32")
    with pytest.raises(InputError, match="delay"):
        configs.load(FOLDER / "quick.yaml", ["data.delay=0"])


def test_an_export_is_measured_like_the_model():
    settings = ["data.delay=3", "data.num_train=8", "data.num_test=4"]
    settings += ["model.units=4", "model.intermediate_dim=4"]
    config = configs.variant(
        configs.load(FOLDER / "quick.yaml", settings), "deq_transformer"
    )
    job = CopyMemoryJob(config, lambda: CopyMemoryJob.load_data(config.data, None))
    model = job.build_model()
    served, samples = job.servable(model)
    assert served is model and samples.shape == (4, 23)
    assert job.evaluate_export(job.opened(model), [2]) == job.evaluate(model, [2])


@pytest.mark.slow
def test_all_networks_train(tmp_path):
    settings = ["data.delay=5", "data.num_train=64", "data.num_test=32"]
    settings += ["phases.0.epochs=3", "tensorboard=false", "evaluation.budgets=[2, 8]"]
    config = configs.load(FOLDER / "quick.yaml", settings)
    directory = small_runs.finished(tmp_path / "run", config)
    for name in config.variants:
        with (directory.run(name) / "history.csv").open() as lines:
            losses = [float(row["val_loss"]) for row in csv.DictReader(lines)]
        assert losses[-1] < losses[0]
