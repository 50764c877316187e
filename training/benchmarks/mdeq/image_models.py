"""Training steps of whole models: MDEQs, and the explicit networks beside them."""

import numpy as np
import tensorflow as tf

from deq_keras import models

from ...data.images import ImageData, in_memory
from ...experiments.classification.mdeq import build_explicit
from ...experiments.classification.schema import (
    ExplicitNetworkConfig,
    MDEQConfig,
)

BATCH, SIDE = 32, 32
PRESETS = ("mdeq_tiny_cifar10", "mdeq_large_cifar10")
MODELS = {
    **{
        f"{preset}, NFE {budget}": {"preset": preset, "budget": budget}
        for preset in PRESETS
        for budget in (6, 18)
    },
    **{
        f"{preset}, NFE 6, not regularised": {
            "preset": preset,
            "budget": 6,
            "regularizer": None,
        }
        for preset in PRESETS
    },
    # Enlarged four times, their first blocks see 32 x 32 positions.
    **{
        network: {"network": network, "upsampling": 4}
        for network in ("resnet_18", "resnet_101", "densenet_121")
    },
}


def training_step(batch, side, preset=None, budget=None, network=None, **arguments):
    """Returns the compiled step of one of `MODELS`, a function of no arguments.

    Its loss is that of ten classes plus the model's own; it returns the gradients.
    """
    if network is None:
        model = _mdeq(preset, budget, **arguments)
    else:
        model = _explicit(side, network, **arguments)
    images = tf.random.stateless_uniform((batch, side, side, 3), (0, 1))
    labels = tf.range(batch) % 10

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses) + sum(model.losses)
        return tape.gradient(loss, model.trainable_variables)

    return step


def _mdeq(preset, budget, **deq):
    backbone = models.MDEQBackbone.from_preset(
        preset,
        load_weights=False,
        solver={"class_name": "anderson", "max_iter": budget, "tol": 0.0},
        gradient={"class_name": "neumann", "num_terms": budget},
        **deq,
    )
    return models.MDEQImageClassifier.from_preset(
        preset, load_weights=False, backbone=backbone
    )


def _explicit(side, network, upsampling):
    explicit = ExplicitNetworkConfig(network, upsampling)
    split = in_memory(np.zeros((1, side, side, 3), "uint8"), np.zeros(1, "int32"))
    data = ImageData(split, split, split, 10, (120.0,) * 3, (60.0,) * 3)
    config = MDEQConfig(filters=[1], explicit=explicit)
    return build_explicit(config, data, "float32")
