"""Metrics of sequences count positions and samples by their weights."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.metrics import ExactMatch, Perplexity
from tests import harness

LABELS = np.array([[1, 0, 2], [1, 0, 2], [0, 0, 0]])
# The first is right, the second and the third have one wrong position.
ANSWERS = np.array([[1, 0, 2], [1, 1, 2], [0, 0, 1]])
SCORES = np.eye(3, dtype="float32")[ANSWERS]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_all_positions_must_be_right(jit_compile):
    metric = ExactMatch()
    assert np.isnan(metric.result())
    update = tf.function(metric.update_state, jit_compile=jit_compile)
    update(LABELS, SCORES)
    assert float(metric.result()) == pytest.approx(1 / 3)
    update(LABELS[:1], SCORES[:1])
    assert float(metric.result()) == pytest.approx(2 / 4)
    metric.reset_state()
    assert np.isnan(metric.result())


@pytest.mark.parametrize(
    "weight, expected",
    [
        ([[1, 1, 1], [1, 0, 1], [1, 1, 1]], 2 / 3),
        ([[1, 1, 1], [0, 0, 0], [1, 1, 0]], 1.0),  # The second has nothing to solve.
        ([[0.5, 0, 0], [0, 2, 0], [0, 0, 3]], 1 / 3),
        ([1, 0, 1], 1 / 2),
    ],
)
def test_positions_without_weight_do_not_count(weight, expected):
    metric = ExactMatch()
    metric.update_state(LABELS, SCORES, sample_weight=np.array(weight))
    assert float(metric.result()) == pytest.approx(expected)


def test_config_round_trip():
    harness.check_round_trip(ExactMatch(name="solved"))


def test_labels_of_another_rank_raise():
    with pytest.raises(ValueError, match="Received"):
        ExactMatch().update_state(LABELS[..., None], SCORES)


WEIGHTS = np.array([1.0, 0.0, 2.0], "float32")


@pytest.mark.parametrize(
    "weight", [WEIGHTS, WEIGHTS[:, None], np.repeat(WEIGHTS[:, None], 3, axis=1)]
)
def test_weight_of_a_perplexity_belongs_to_a_sample(weight):
    losses = np.random.default_rng(0).uniform(size=(3, 3)).astype("float32")
    metric = Perplexity()
    metric.update_state(None, losses, weight)
    mean = (losses * WEIGHTS[:, None]).sum() / (3 * WEIGHTS.sum())
    assert float(metric.result()) == pytest.approx(np.exp(mean), rel=1e-6)
