"""Builds a TrellisNet. Training and evaluation are shared with language models."""

import dataclasses

import keras

from deq_keras import models

from ...errors import InputError
from ...runs.phases import STRATEGIES
from ..language_model.job import LanguageModelJob

# Config keys that only the equilibrium uses.
_OF_EQUILIBRIUM = (*STRATEGIES, "dilation_rate", "cell_shift")
_OF_TASK = ("tie_weights", "num_experts", "expert_dropout", "auxiliary_weight")


def build_model(config, tokenizer):
    """Builds the `NextTokenLossModel` of a `TrellisNetConfig`.

    Raises:
        InputError: If an argument of the model is invalid.
    """
    arguments = dataclasses.asdict(config.model)
    explicit = arguments.pop("explicit")
    backbone_cls, task_cls = models.DEQTrellisNetBackbone, models.DEQTrellisNetCausalLM
    if explicit is not None:
        backbone_cls, task_cls = models.TrellisNetBackbone, models.TrellisNetCausalLM
        for name in _OF_EQUILIBRIUM:
            arguments.pop(name, None)
        arguments |= explicit
    task = {name: arguments.pop(name) for name in _OF_TASK if name in arguments}
    policy = keras.DTypePolicy(config.precision)
    try:
        backbone = backbone_cls(tokenizer.vocabulary_size(), dtype=policy, **arguments)
        preprocessor = models.DEQTrellisNetCausalLMPreprocessor(tokenizer)
        causal_lm = task_cls(backbone, preprocessor=preprocessor, **task)
    except (TypeError, ValueError) as error:
        raise InputError(f"`model`: {error}") from error
    return models.NextTokenLossModel(causal_lm, name="language_model")


class TrellisNetJob(LanguageModelJob):
    """One variant of a TrellisNet."""

    make_model = staticmethod(build_model)
