import numpy as np
import pytest

from deq_keras.metrics import Perplexity

LOSSES = np.random.default_rng(0).uniform(size=(3, 3)).astype("float32")
WEIGHTS = np.array([1.0, 0.0, 2.0], "float32")


@pytest.mark.parametrize(
    "weight", [WEIGHTS, WEIGHTS[:, None], np.repeat(WEIGHTS[:, None], 3, axis=1)]
)
def test_a_weight_belongs_to_a_sample(weight):
    metric = Perplexity()
    metric.update_state(None, LOSSES, weight)
    mean = (LOSSES * WEIGHTS[:, None]).sum() / (3 * WEIGHTS.sum())
    assert float(metric.result()) == pytest.approx(np.exp(mean), rel=1e-6)
