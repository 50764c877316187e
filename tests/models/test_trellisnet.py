"""TrellisNet adds its auxiliary losses in training."""

import numpy as np
import tensorflow as tf

from deq_keras import models


def _model(task=None, **kwargs):
    arguments = {"hidden_dim": 8, "intermediate_dim": 16, "num_layers": 6, **kwargs}
    backbone = models.TrellisNetBackbone(60, **arguments)
    return models.TrellisNetCausalLM(backbone, **(task or {}))


def _examples():
    tokens = np.random.default_rng(0).integers(0, 60, (4, 13)).astype("int32")
    return models.NextTokenLossModel.examples(tokens[:, :-1], tokens[:, 1:])


def test_auxiliary_losses_are_added_in_training():
    causal_lm = _model({"auxiliary_weight": 0.25}, auxiliary_frequency=2)
    model = models.NextTokenLossModel(causal_lm)
    x, y = _examples()
    hidden = causal_lm.backbone.hidden_states(x["token_ids"])
    assert len(hidden) == 4
    losses = [tf.reduce_mean(causal_lm.softmax(states, y)) for states in hidden]
    found = model(x, training=True)
    np.testing.assert_allclose(tf.reduce_mean(found), losses[0], rtol=1e-6)
    np.testing.assert_allclose(model.losses, [0.25 * sum(losses[1:])], rtol=1e-5)
    model(x)
    assert not model.losses
