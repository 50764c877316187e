"""The networks that `memory` and `runtime` measure, at a fraction of their width."""

import keras

from deq_keras import models

from ..benchmarks import language_model, mdeq

# The tables exclude embedding and softmax. With this vocabulary, both are small.
VOCABULARY = 65
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
_VISION = ("mdeq", "explicit_vision")
_WIDTHS = ("hidden_dim", "intermediate_dim", "num_heads")
_SIDE = 32


def build(family, scale, **arguments):
    """Returns a network with random weights.

    Args:
        family: String. One of the language models `"deq_transformer"`,
            `"unrolled_transformer"`, `"transformer_xl"`, `"deq_trellisnet"` and
            `"trellisnet"`, or `"mdeq"` or `"explicit_vision"`.
        scale: Positive integer. Divides the widths and heads of a language model.
        **arguments: Arguments of the backbone, or of `mdeq.build_model`.
    """
    keras.utils.set_random_seed(0)
    if family in _VISION:
        return mdeq.build_model(_SIDE, **arguments)
    for name in set(_WIDTHS) & set(arguments):
        arguments[name] //= scale
    backbone_class, task_class = _LANGUAGE[family]
    return task_class(backbone_class(VOCABULARY, **arguments))


def training_step(model, batch, length):
    """Returns a compiled step, a function without arguments that returns gradients.

    Args:
        model: Result of `build`.
        batch: Positive integer. Texts or images.
        length: Positive integer. Tokens of a text. Ignored for images.
    """
    if isinstance(model, models.LanguageCausalLM):
        return language_model.training_step(model, batch, length)
    return mdeq.step_of(model, batch, _SIDE)


def inference_step(model, batch, length):
    """Like `training_step`, but returns the losses of a language model."""
    return language_model.inference_step(model, batch, length)


def num_weights(model):
    """Returns the number of trainable weights."""
    return sum(
        variable.value.shape.num_elements() for variable in model.trainable_variables
    )
