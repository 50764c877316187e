"""Measures memory and runtime of whole models beside explicit networks.

The networks of the papers, at a fraction of their width, with the published numbers.
2019 is Bai et al. (2019), "Deep Equilibrium Models"; 2021 is Bai et al. (2021),
"Stabilizing Equilibrium Models by Jacobian Regularization".
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from deq_keras import models

from ..data.images import ImageData, in_memory
from ..experiments.classification.mdeq import build_explicit
from ..experiments.classification.schema import ExplicitNetworkConfig, MDEQConfig
from . import measuring
from .measuring import compare, in_fresh_process, measure

BATCH, LENGTH, IMAGES, SIDE = 15, 150, 32, 32
# The tables exclude embedding and softmax. With this vocabulary, both are small.
VOCABULARY = 65
# Fraction of the published widths and heads of language models.
SCALE = 5
# Fraction of the training steps with a penalty, as in the scripts of 2021.
_PENALIZED = 0.4
_JR = {"class_name": "jacobian"}


def _components(name, forward, backward, regularizer=None, **arguments):
    """Returns a solver and Broyden's method for the adjoint, at their whole budgets.

    With a penalty, the measured step has it. In training, some steps have it.
    """
    adjoint = {"class_name": "broyden", "max_iter": backward, "tol": 0.0}
    return {
        "solver": {"class_name": name, "max_iter": forward, "tol": 0.0, **arguments},
        "gradient": {"class_name": "implicit", "solver": adjoint},
        "regularizer": regularizer,
    }


def _neumann(forward, terms):
    """Returns Anderson with a Neumann series as its gradient, at whole budgets."""
    solver = {"class_name": "anderson", "max_iter": forward, "tol": 0.0}
    return {
        "solver": solver,
        "gradient": {"class_name": "neumann", "num_terms": terms},
    }


_anderson = functools.partial(_components, "anderson", history=6)
_broyden = functools.partial(_components, "broyden")


def _transformer(family, width, inner, **arguments):
    sizes = {"hidden_dim": width, "num_heads": 10, "intermediate_dim": inner}
    return {"family": family, "memory_length": LENGTH, **sizes, **arguments}


def _layers(width, inner, num_layers, **arguments):
    return _transformer(
        "transformer_xl", width, inner, num_layers=num_layers, **arguments
    )


def _deq(width, inner, components, **arguments):
    return _transformer("deq_transformer", width, inner, **components, **arguments)


def _levels(sizes, num_layers, auxiliary_frequency, **arguments):
    levels = {"num_layers": num_layers, "auxiliary_frequency": auxiliary_frequency}
    return {"family": "trellisnet", **sizes, **levels, **arguments}


def _trellisnet(sizes, components, **arguments):
    return {"family": "deq_trellisnet", **sizes, **components, **arguments}


def _mdeq(size, budget, **arguments):
    preset = f"mdeq_{size}_cifar10"
    return {"family": "mdeq", "preset": preset, **_neumann(budget, budget), **arguments}


# The medium size with adaptive embeddings.
_adaptive = functools.partial(_deq, 700, 48000)
_PTB = {"hidden_dim": 400, "intermediate_dim": 1000, "memory_length": 1}
# The sizes of the DEQ's script and of the script of TrellisNet's authors.
_WT103 = {"hidden_dim": 500, "intermediate_dim": 1500, "memory_length": 1}
_WT103_LEVELS = {"hidden_dim": 512, "intermediate_dim": 1600, "memory_length": 1}
_LEVELS_70, _LAYERS_18 = _levels(_WT103_LEVELS, 70, 25), _layers(700, 1100, 18)
_PLAIN_2019, _PLAIN_30 = _adaptive(_broyden(31, 40)), _adaptive(_anderson(30, 35))
_PLAIN_20, _POST_LN = _adaptive(_anderson(20, 20)), _adaptive(_anderson(13, 13, _JR))
_PRE_LN = _adaptive(_anderson(14, 14, _JR), normalize_first=True)
# In the published sizes, an evaluation of f computes as much as all 18 layers.
_SMALL_30 = _deq(700, 1100, _anderson(30, 35))
_SMALL_JR = _deq(700, 1100, _anderson(13, 13, _JR))
_B31, _B51 = "DEQ-Transformer, Broyden 31 + 40", "DEQ-TrellisNet, Broyden 51 + 81"
_A51 = "DEQ-TrellisNet, Anderson 51 + Neumann 20"
_B46 = "DEQ-TrellisNet, Broyden 46 + 46"
_A46 = "DEQ-TrellisNet, Anderson 46 + Neumann 20"

FIGURE_6 = "CIFAR-10, batch 32 (2021, figure 6)"

# Group -> network -> its arguments, with the published GB. A group is relative to its
# first network. The unrolled network is the control, which must grow.
MEMORY = {
    "control, must grow": {
        f"unrolled {count} times": {
            **_layers(700, 1100, count, weight_tied=True),
            "family": "unrolled_transformer",
        }
        for count in (6, 12, 24)
    },
    "TrellisNet, Penn Treebank (2019, table 2)": {
        "60 levels": _levels(_PTB, 60, 12, published=8.5),
        "60 levels, recomputed": _levels(_PTB, 60, 12, recompute=True),
        _B51: _trellisnet(_PTB, _broyden(51, 81), published=1.2),
        _A51: _trellisnet(_PTB, _neumann(51, 20), regularizer=None),
    },
    "TrellisNet, WikiText-103 (2019, table 3)": {
        "70 levels": {**_LEVELS_70, "published": 24.7},
        "70 levels, recomputed": {**_LEVELS_70, "recompute": True, "published": 5.2},
        _B46: _trellisnet(_WT103, _broyden(46, 46), published=3.3),
        _A46: _trellisnet(_WT103, _neumann(46, 20), regularizer=None),
    },
    "Transformer, small (2019, table 3)": {
        "16 tied layers": _layers(500, 3250, 16, weight_tied=True, published=6.8),
        "4 layers": _layers(500, 250, 4, published=4.8),
        _B31: _deq(500, 2500, _broyden(31, 40), published=1.1),
    },
    "Transformer, medium (2019, table 3)": {
        "16 layers": _layers(450, 1930, 16, published=8.5),
        _B31: _deq(480, 42800, _broyden(31, 40), published=2.7),
    },
    "Transformer, medium adaptive (2019, table 3; 2021, table 5)": {
        "18 layers": {**_LAYERS_18, "published": 9.0},
        "18 tied layers": {**_LAYERS_18, "weight_tied": True},
        "18 layers, recomputed": {**_LAYERS_18, "recompute": True},
        _B31: {**_PLAIN_2019, "published": 3.7},
        "DEQ post-LN, Anderson 30 + 35": {**_PLAIN_30, "published": 3.9},
        "DEQ post-LN, Anderson 20 + 20": {**_PLAIN_20, "published": 3.6},
        "DEQ pre-LN + JR, Anderson 14 + 14": {**_PRE_LN, "published": 4.8},
        "DEQ post-LN + JR, Anderson 13 + 13": {**_POST_LN, "published": 4.8},
        "DEQ post-LN + JR, length 300": {**_POST_LN, "length": 300, "published": 6.5},
    },
    # The ratio is published, without numbers of GB.
    "inference, medium adaptive (2021, section 4)": {
        "DEQ, Broyden 30": _adaptive(_broyden(30, 1), training=False, published=1.0),
        "DEQ + JR, Anderson 13": {**_POST_LN, "training": False, "published": 0.5},
    },
    FIGURE_6: {
        "ResNet-101": {"family": "explicit", "network": "resnet_101"},
        "ResNet-18": {"family": "explicit", "network": "resnet_18"},
        "DenseNet-121": {"family": "explicit", "network": "densenet_121"},
        "MDEQ tiny, NFE 6, not regularized": _mdeq("tiny", 6, regularizer=None),
        "MDEQ tiny, NFE 6": _mdeq("tiny", 6),
        "MDEQ tiny, NFE 18": _mdeq("tiny", 18),
        "MDEQ large, NFE 6, not regularized": _mdeq("large", 6, regularizer=None),
        "MDEQ large, NFE 6": _mdeq("large", 6),
        "MDEQ large, NFE 18": _mdeq("large", 18),
        "MDEQ large, NFE 17, not regularized": _mdeq("large", 17, regularizer=None),
        "MDEQ large + JR, NFE 6": _mdeq("large", 6, regularizer=_JR),
    },
}

# Equilibrium -> its arguments, the explicit network's, and the published ratios of
# training and inference (2019, table 4; 2021, table 1).
RUNTIME = {
    _B46: (_trellisnet(_WT103, _broyden(46, 46)), _LEVELS_70, 2.40, 1.64),
    _B31: (_PLAIN_2019, _LAYERS_18, 2.82, 1.76),
    "DEQ post-LN, Anderson 30 + 35": (_PLAIN_30, _LAYERS_18, 3.1, None),
    "DEQ post-LN, Anderson 20 + 20": (_PLAIN_20, _LAYERS_18, 2.2, None),
    "DEQ pre-LN + JR, Anderson 14 + 14": (_PRE_LN, _LAYERS_18, 1.5, None),
    "DEQ post-LN + JR, Anderson 13 + 13": (_POST_LN, _LAYERS_18, 1.4, None),
    "one layer as f, Anderson 30 + 35": (_SMALL_30, _LAYERS_18, None, None),
    "one layer as f, JR, Anderson 13 + 13": (_SMALL_JR, _LAYERS_18, None, None),
}
# Networks and pairs of quick measurements.
_SMALL = ("control, must grow", "Transformer, small (2019, table 3)")
_SMALL_PAIRS = ("one layer as f, Anderson 30 + 35",)
_LANGUAGE = {
    "deq_transformer": (models.DEQTransformerBackbone, models.DEQTransformerCausalLM),
    "unrolled_transformer": (
        models.ExplicitTransformerBackbone,
        models.ExplicitTransformerCausalLM,
    ),
    "transformer_xl": (models.TransformerXLBackbone, models.TransformerXLCausalLM),
    "deq_trellisnet": (models.DEQTrellisNetBackbone, models.DEQTrellisNetCausalLM),
    "trellisnet": (models.TrellisNetBackbone, models.TrellisNetCausalLM),
}


def build(family, **arguments):
    """Returns a network with random weights.

    A language model has the `arguments` of its backbone, in published widths; an MDEQ
    has its `preset` as well, and an explicit image model only its name `network`.
    """
    keras.utils.set_random_seed(0)
    if family == "mdeq":
        preset = arguments.pop("preset")
        backbone = models.MDEQBackbone.from_preset(
            preset, load_weights=False, **arguments
        )
        return models.MDEQImageClassifier.from_preset(
            preset, load_weights=False, backbone=backbone
        )
    if family == "explicit":
        # Images are enlarged four times: the first block sees 32 x 32 positions.
        network = ExplicitNetworkConfig(network=arguments["network"], upsampling=4)
        images = np.zeros((1, SIDE, SIDE, 3), "uint8")
        split = in_memory(images, np.zeros(1, "int32"))
        data = ImageData(split, split, split, 10, (120.0,) * 3, (60.0,) * 3)
        config = MDEQConfig(filters=[1], explicit=network)
        return build_explicit(config, data, "float32")
    for name in ("hidden_dim", "intermediate_dim", "num_heads"):
        if name in arguments:
            arguments[name] //= SCALE
    backbone_class, task_class = _LANGUAGE[family]
    return task_class(backbone_class(VOCABULARY, **arguments))


def step(model, length=LENGTH, training=True):
    """Returns a compiled step of a model, a function without arguments.

    See `step_and_inputs`. It has run once, so that the memory of previous segments is
    full.
    """
    call, inputs = step_and_inputs(model, length, training)
    call(inputs)
    return functools.partial(call, inputs)


def step_and_inputs(model, length=LENGTH, training=True, jit_compile=False):
    """Returns a step of a model, a `tf.function`, and its inputs.

    It returns the gradients of all weights, or at inference the losses. Texts have
    `length` tokens.
    """
    if isinstance(model, models.LanguageCausalLM):
        losses_of = models.NextTokenLossModel(model)
        ids = tf.random.stateless_uniform(
            (2, BATCH, length), (0, 1), maxval=VOCABULARY, dtype=tf.int32
        )
        inputs, labels = {"token_ids": ids[0], "targets": ids[1]}, None
    else:
        inputs = tf.random.stateless_uniform((IMAGES, SIDE, SIDE, 3), (0, 1))
        losses_of, labels = model, tf.range(IMAGES) % 10

    def losses(inputs, training):
        outputs = losses_of(inputs, training=training)
        if labels is None:
            return outputs
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)

    @functools.partial(tf.function, jit_compile=jit_compile)
    def call(inputs):
        if not training:
            return losses(inputs, False)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(inputs, True)) + sum(losses_of.losses)
        return tape.gradient(loss, losses_of.trainable_variables)

    return call, inputs


def memory(effort, groups=None):
    """Returns the peak memory and the time of steps, by group and network.

    Each network is measured in a fresh process, and compared with the first of its
    group. Quick measurements have the small networks alone.
    """
    if groups is None:
        names = _SMALL if effort == measuring.QUICK else MEMORY
        groups = {name: MEMORY[name] for name in names}
    results = {}
    for group, networks in groups.items():
        results[group], first = {}, None
        for label, network in networks.items():
            measuring.progress(f"{group}, {label}")
            network = dict(network)
            published = network.pop("published", None)
            found = in_fresh_process(one_step, effort=effort, **network)
            first = first or {**found, "published": published}
            if first["mib"] not in (measuring.NOT_MEASURABLE, 0.0):
                found["relative"] = found["mib"] / first["mib"]
            if published is not None:
                found["published_gb"] = published
                found["published_relative"] = published / first["published"]
            results[group][label] = found
    return results


def one_step(effort, length=LENGTH, training=True, **network):
    """Returns the peak growth in MiB, the time, and the millions of weights."""
    model = build(**network)
    call = step(model, length, training)
    mib = measuring.NOT_MEASURABLE
    if measuring.is_memory_measurable():
        mib = measuring.peak_growth(call)
    count = sum(np.prod(weight.shape) for weight in model.trainable_variables)
    return {
        "mib": mib,
        "milliseconds": measure(call, effort).median,
        "millions_of_weights": float(count / 1e6),
    }


def runtime(effort, pairs=None):
    """Returns the time of training and inference over the explicit network's.

    The networks of a pair alternate in a fresh process. The training step with a
    penalty counts as often as it occurs in training. Quick measurements have the pairs
    with one layer as f alone.
    """
    if pairs is None:
        names = _SMALL_PAIRS if effort == measuring.QUICK else RUNTIME
        pairs = {name: RUNTIME[name] for name in names}
    results = {}
    for label, (network, explicit, training, inference) in pairs.items():
        measuring.progress(label)
        found = in_fresh_process(
            ratios, network=network, explicit=explicit, effort=effort
        )
        results[label] = {
            "training": found["training"],
            "inference": found["inference"],
            "published_training": training,
            "published_inference": inference,
        }
    return results


def ratios(network, explicit, effort):
    """Returns the ratios of one of `RUNTIME`; see `runtime`."""
    model, reference = build(**network), build(**explicit)

    def ratio(model, training):
        pair = (step(one, training=training) for one in (model, reference))
        found = compare(*pair, effort)
        return {name: getattr(found, name) for name in measuring.spread([0.0])}

    found = ratio(model, True)
    if network.get("regularizer") is not None:
        plain = ratio(build(**{**network, "regularizer": None}), True)
        found = {
            name: _PENALIZED * found[name] + (1 - _PENALIZED) * plain[name]
            for name in found
        }
    return {"training": found, "inference": ratio(model, False)}


MEASUREMENTS = {"memory": memory, "runtime": runtime}
