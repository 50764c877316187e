"""Gradients of several batches that are accumulated for one update."""

import keras
import numpy as np
import pytest

import deq_keras
from tests.training.runs import small_runs
from training.config.fields import OptimizerConfig
from training.runs.optimizers import build_optimizer
from training.runs.train import train


class AccumulatingJob(small_runs.RegressionJob):
    """A regression whose epoch is one call of a compiled function."""

    def objective(self):
        # Schedules of every step still act in each.
        steps_per_epoch = self.feed.steps_per_epoch
        return {"loss": "mse", "steps_per_execution": steps_per_epoch}


def _fitted(name, accumulation_steps, batch_size, inputs, layers, clip_norm, **mode):
    """Returns the weights after two batches of 8 examples, and the logs."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([*layers(), keras.layers.Dense(1)])
    config = OptimizerConfig(
        name=name,
        learning_rate=0.01,
        schedule="constant",
        weight_decay=0.01,
        clip_norm=clip_norm,
        accumulation_steps=accumulation_steps,
    )
    num_steps = 2 * accumulation_steps
    optimizer = build_optimizer(config, num_steps, num_steps, "float32")
    model.compile(optimizer, "mse", **mode)
    logs = model.fit(
        inputs,
        small_runs.INPUTS[:, :1],
        batch_size=batch_size,
        shuffle=False,
        verbose=0,
    ).history
    return model.get_weights(), logs


@pytest.mark.parametrize("name, is_embedded", [("sgd", False), ("radam", True)])
def test_two_half_batches_are_one_batch(name, is_embedded):
    def layers():
        if is_embedded:  # Its gradients are `IndexedSlices`.
            return [keras.Input(()), keras.layers.Embedding(5, 3)]
        cell = deq_keras.layers.DenseCell(4)
        solver = deq_keras.solvers.FixedPointIteration(max_iter=3, tol=None)
        layer = deq_keras.layers.DEQ(cell, solver, gradient="unrolled", name="deq")
        return [keras.Input((3,)), layer]

    inputs = np.arange(16) % 5 if is_embedded else small_runs.INPUTS
    # Keras' norm of `IndexedSlices` counts the rows of a repeated index apart.
    clip_norm = None if is_embedded else 0.5
    # One of the cases runs in a graph, the one whose model is traced fast.
    rest = inputs, layers, clip_norm
    whole, expected = _fitted(name, 1, 8, *rest, run_eagerly=not is_embedded)
    halves, logs = _fitted(name, 2, 4, *rest, run_eagerly=not is_embedded)
    for one, other in zip(halves, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert logs.keys() == expected.keys()
    assert is_embedded or {"deq_residual", "deq_evaluations"} < logs.keys()
    for metric in logs:
        np.testing.assert_allclose(logs[metric], expected[metric], rtol=1e-3)


def _run(small, folder, changes, deaths=()):
    folder.mkdir()
    small["optimizer"] = {"learning_rate": 0.05, **changes}
    small["model"]["solver"] = small_runs.QUICK_SOLVER
    phases = [
        {"epochs": 1},
        {
            "epochs": 2,
            "regularizer": "jacobian",
            "regularizer_ramp": {"factor": [0.0, 1.0]},
        },
    ]
    for dies_in in (*deaths, None):
        job = AccumulatingJob.of(small, phases, dies_in)
        try:
            return train(job, folder)
        except small_runs.Killed:
            pass


def test_resumed_run_keeps_the_accumulated_gradients(small, tmp_path):
    """Three steps an update, four an epoch: epochs end within an update."""
    changes = {
        "schedule": "inverse_square_root",
        "warmup_epochs": 0.5,
        "accumulation_steps": 3,
    }
    with small_runs.eagerly():
        _, history = _run(small, tmp_path / "whole", changes)
        _, resumed = _run(small, tmp_path / "parts", changes, deaths=(2,))
    small_runs.assert_same_checkpoints(tmp_path / "parts", tmp_path / "whole")
    small_runs.assert_same_histories(resumed, history)
    loaded = keras.saving.load_model(tmp_path / "whole" / "model.keras")
    assert int(loaded.optimizer.iterations) == 12 // 3
    # The factor of the last steps: the ramp began in step 4 and has 8.
    assert history[-1]["deq_penalty_factor"] == (9 - 4) / 8
    # Rates count training steps, of which the last update began after 9.
    rate = float(loaded.optimizer.learning_rate)
    np.testing.assert_allclose(rate, 0.05 * np.sqrt(2 / 9), rtol=1e-6)
