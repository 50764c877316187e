"""The experiment `copy_memory`."""

from pathlib import Path

import numpy as np
import pytest

from tests.regimes import slow
from training.config import reading as configs
from training.evaluation.budgets import equilibrium
from training.experiments.copy_memory import CopyMemoryJob, copy_memory
from training.runs.train import build, compile_model

FOLDER = Path(__file__).parents[3] / "configs" / "copy_memory"
SMALL = ["data.delay=3", "data.num_train=8", "data.num_test=4", "model.units=4"]


def job(name):
    whole = configs.load(FOLDER / "short.yaml", [*SMALL, "model.intermediate_dim=4"])
    return CopyMemoryJob(configs.variant(whole, name))


def test_sequences():
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


@pytest.mark.parametrize("name", ["tcn", slow("gru")])
def test_networks_are_causal(name):
    model = job(name).build_model()
    inputs, _ = copy_memory(2, 5, 0)
    changed = inputs.copy()
    changed[:, 12:] = 3
    outputs = model(inputs)[:, :12], model(changed)[:, :12]
    np.testing.assert_allclose(*outputs, atol=1e-3)


def test_loss_equals_keras():
    measured = job("deq_transformer")
    model, optimizer, _ = build(measured)
    budget = equilibrium(model).solver.max_iter
    (row,) = measured.evaluate(model, [budget])["budgets"]
    compile_model(measured, model, optimizer)
    logs = model.evaluate(*measured.feed.test, verbose=0, return_dict=True)
    assert row["loss"] == pytest.approx(logs["loss"], rel=1e-4)
