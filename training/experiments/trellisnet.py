"""A DEQ-TrellisNet, or a TrellisNet, that predicts the next token of a text."""

from typing import Literal

import keras

from deq_keras import models
from deq_keras.converters import locuslab

from ..config import keys
from ..config.fields import Components, Config
from ..registry import Experiment, Score
from ..runs.components import STRATEGIES
from .language_model.job import LanguageModelJob, assemble
from .language_model.schema import LanguageModelConfig

_Distance = keys.integer(le=2**16)

# Config keys that only the equilibrium uses, and keys of the task.
_OF_EQUILIBRIUM = (*STRATEGIES, "dilation_rate", "cell_shift")
_OF_TASK = ("tie_weights", "num_experts", "expert_dropout", "auxiliary_weight")


class LevelsConfig(Config):
    """Arguments of `TrellisNetBackbone` and `TrellisNetCausalLM`; see there.

    Args:
        dilations: List of positive integers. Dilations of the levels, repeated
            cyclically.
        auxiliary_weight: Non-negative float. Weight of the auxiliary losses.
    """

    num_layers: keys.Layers
    dilations: keys.Some[_Distance] = [1]
    auxiliary_frequency: keys.Count | None = None
    auxiliary_weight: keys.number(ge=0, le=1000) = 0.1
    recompute: bool = False


class TrellisNetModelConfig(Components):
    """Arguments of `DEQTrellisNetBackbone` and `DEQTrellisNetCausalLM`; see there.

    Args:
        explicit: Explicit levels to train instead of an equilibrium, as a baseline.
            `dilation_rate`, `cell_shift`, `solver`, `gradient`, `regularizer` and
            `initial_state` are then ignored.
        tie_weights: Boolean. Whether the logits use the transposed embedding.
        num_experts: Positive integer. Softmax distributions that are mixed.
        expert_dropout: Float in [0, 1). Dropout rate of the experts' inputs.
    """

    gradient: keys.Component = "neumann"
    regularizer: keys.Component | None = "contraction"
    hidden_dim: keys.Width
    intermediate_dim: keys.Width
    embedding_dim: keys.Width | None = None
    cutoffs: keys.Several[keys.Vocabulary] = []
    kernel_size: keys.integer(ge=2, le=64) = 2
    dilation_rate: _Distance = 1
    cell_shift: _Distance = 1
    memory_length: keys.integer(ge=0, le=2**16) = 1
    token_dropout: keys.Rate = 0.0
    embedding_dropout: keys.Rate = 0.0
    hidden_dropout: keys.Rate = 0.0
    output_dropout: keys.Rate = 0.0
    weight_dropout: keys.Rate = 0.0
    weight_normalization: bool = True
    tie_weights: bool = True
    num_experts: keys.integer(le=100) = 1
    expert_dropout: keys.Rate = 0.0
    explicit: LevelsConfig | None = None


class TrellisNetConfig(LanguageModelConfig):
    """A TrellisNet language model; see `LanguageModelConfig`."""

    experiment: Literal["trellisnet"]
    model: TrellisNetModelConfig


class TrellisNetJob(LanguageModelJob):
    """One variant of a TrellisNet."""

    def build_network(self, tokenizer):
        arguments = self.config.model.model_dump()
        explicit = arguments.pop("explicit")
        classes = models.DEQTrellisNetBackbone, models.DEQTrellisNetCausalLM
        if explicit is not None:
            classes = models.TrellisNetBackbone, models.TrellisNetCausalLM
            for name in _OF_EQUILIBRIUM:
                arguments.pop(name, None)
            arguments |= explicit
        task = {name: arguments.pop(name) for name in _OF_TASK if name in arguments}
        preprocessor = models.DEQTrellisNetCausalLMPreprocessor(tokenizer)
        return assemble(self.config, preprocessor, *classes, arguments, **task)

    def convert(self, state_dict):
        model = self.config.model
        causal_lm = locuslab.load_deq_trellisnet(
            state_dict,
            dilation=model.dilation_rate,
            splits=model.cutoffs,
            solver=model.solver,
            gradient=model.gradient,
            regularizer=model.regularizer,
            dtype=keras.DTypePolicy(self.config.precision),
        )
        causal_lm.backbone.memory_length = model.memory_length
        return causal_lm


EXPERIMENT = Experiment(
    TrellisNetConfig,
    TrellisNetJob,
    Score("loss", "loss [nats a token]", 1, ".3f"),
    generates=True,
)
