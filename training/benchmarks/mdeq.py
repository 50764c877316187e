"""`deq-keras benchmark mdeq`: the costs of a multiscale DEQ.

Measures training steps relative to their ideal, and compares wall time and peak memory
of training steps of whole models with explicit networks.
"""

import keras
import numpy as np
import tensorflow as tf

from deq_keras import layers, models

from ..data.images import ImageData, in_memory
from ..experiments.classification.mdeq import build_explicit
from ..experiments.classification.schema import ExplicitNetworkConfig, MDEQConfig
from . import costs
from .measuring import Effort, in_fresh_process, measure
from .runner import Benchmark
from .workloads import Workload

_BATCH, _SIDE = 32, 32
# The published models of CIFAR-10.
_CELLS = {
    "TINY": {"filters": (24, 24)},
    "CIFAR LARGE": {"filters": (32, 64, 128, 256)},
}
_PRESETS = ("mdeq_tiny_cifar10", "mdeq_large_cifar10")
_MODELS = {
    **{
        f"{preset}, NFE {budget}": {"preset": preset, "budget": budget}
        for preset in _PRESETS
        for budget in (6, 18)
    },
    **{
        f"{preset}, NFE 6, not regularized": {
            "preset": preset,
            "budget": 6,
            "regularizer": None,
        }
        for preset in _PRESETS
    },
    # On images enlarged four times, whose first blocks see 32 x 32 positions.
    **{
        network: {"network": network, "upsampling": 4}
        for network in ("resnet_18", "resnet_101", "densenet_121")
    },
}


def step_costs(effort, cells=_CELLS, num_evaluations=6, **sizes):
    """Returns training steps over their ideal, by cell; see `costs.step_cost`."""
    return {
        name: costs.step_cost(
            _workload(name, arguments, **sizes), "anderson", num_evaluations, effort
        )
        for name, arguments in cells.items()
    }


def _workload(name, arguments, batch=_BATCH, side=_SIDE):
    """Returns the `Workload` of a multiscale cell with random weights and inputs."""
    keras.utils.set_random_seed(0)
    cell = layers.MultiscaleCell(
        **{"groups": 8, "post_affine": False, **arguments}, seed=0
    )
    shape = (batch, side, side, cell.filters[0])
    cell.build(shape)
    inputs = tf.random.stateless_normal(shape, (0, 1))
    state = cell.initial_state(cell.inject(inputs))
    target = [
        tf.random.stateless_normal(leaf.shape, (0, 2 + scale))
        for scale, leaf in enumerate(state)
    ]
    return Workload(name, cell, inputs, target)


def training_times(effort, chosen=_MODELS, batch=_BATCH, side=_SIDE):
    """Returns the `Duration` of a training step in a fresh process, by model."""
    shared = {"effort": effort, "batch": batch, "side": side}
    return {
        name: in_fresh_process("mdeq.step_time", {**shared, **model})
        for name, model in chosen.items()
    }


def step_time(effort, **arguments):
    """Returns the `Duration` of a `training_step`."""
    return measure(training_step(**arguments), Effort(*effort))


def training_peaks(effort, chosen=_MODELS, batch=_BATCH, side=_SIDE):
    """Returns the peak memory of a training step, by model; see `costs.peaks`."""
    del effort
    return costs.peaks(training_step, chosen, batch=batch, side=side)


def training_step(batch, side, **arguments):
    """Returns the compiled step of one of `_MODELS`, a function without arguments.

    Its loss is the cross-entropy of ten classes plus the model's own losses; it returns
    the gradients.
    """
    return step_of(build_model(side, **arguments), batch, side)


def build_model(side, preset=None, budget=None, network=None, **arguments):
    """Returns a multiscale DEQ or an explicit network for images of ten classes."""
    if network is None:
        return _mdeq(preset, budget, **arguments)
    return _explicit(side, network, **arguments)


def step_of(model, batch, side):
    """Returns the step of a model; see `training_step`."""
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


BENCHMARKS = {
    "mdeq": Benchmark(
        "Measures a multiscale DEQ.",
        {"step": step_costs, "time": training_times, "memory": training_peaks},
    )
}
