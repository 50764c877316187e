"""Builds a TrellisNet. Training and evaluation are shared with language models."""

import dataclasses

from deq_keras import models

from ...runs.phases import STRATEGIES
from ..language_model.job import LanguageModelJob, assemble

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
    preprocessor = models.DEQTrellisNetCausalLMPreprocessor(tokenizer)
    return assemble(config, preprocessor, backbone_cls, task_cls, arguments, **task)


class TrellisNetJob(LanguageModelJob):
    """One variant of a TrellisNet."""

    make_model = staticmethod(build_model)
