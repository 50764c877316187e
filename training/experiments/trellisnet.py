"""A DEQ-TrellisNet, or a TrellisNet, that predicts the next token of a text."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

import keras

from deq_keras import models
from deq_keras.converters import locuslab

from ..config.bounds import COUNT, LAYERS, RATE, WIDTH
from ..config.component_fields import components
from ..registry import Experiment, Score
from ..runs.phases import STRATEGIES
from .language_model.job import LanguageModelJob, assemble
from .language_model.schema import LanguageModelConfig

_DISTANCE = {"minimum": 1, "maximum": 2**16}
_TAPS = {"minimum": 2, "maximum": 64}
_VOCABULARY = {"minimum": 1, "maximum": 10_000_000}
_WEIGHT = {"minimum": 0.0, "maximum": 1000.0}

# Config keys that only the equilibrium uses, and keys of the task.
_OF_EQUILIBRIUM = (*STRATEGIES, "dilation_rate", "cell_shift")
_OF_TASK = ("tie_weights", "num_experts", "expert_dropout", "auxiliary_weight")


@dataclass(frozen=True)
class LevelsConfig:
    """Arguments of `TrellisNetBackbone`, and of `TrellisNetCausalLM`; see there."""

    num_layers: int = field(metadata=LAYERS)
    dilations: list[int] = field(
        default_factory=lambda: [1],
        metadata={"non_empty": True, "max_items": 1000, **_DISTANCE},
    )
    auxiliary_frequency: int | None = field(default=None, metadata=COUNT)
    auxiliary_weight: float = field(default=0.1, metadata=_WEIGHT)
    recompute: bool = False


@dataclass(frozen=True)
class TrellisNetModelConfig(components(gradient="neumann", regularizer="contraction")):
    """Arguments of `DEQTrellisNetBackbone`, and of `DEQTrellisNetCausalLM`; see there.

    Args:
        explicit: Explicit levels to train instead of an equilibrium, as a baseline.
            `dilation_rate`, `cell_shift`, `solver`, `gradient`, `regularizer` and
            `initial_state` are then ignored.
    """

    hidden_dim: int = field(metadata=WIDTH)
    intermediate_dim: int = field(metadata=WIDTH)
    embedding_dim: int | None = field(default=None, metadata=WIDTH)
    cutoffs: list[int] = field(
        default_factory=list, metadata={"max_items": 16, **_VOCABULARY}
    )
    kernel_size: int = field(default=2, metadata=_TAPS)
    dilation_rate: int = field(default=1, metadata=_DISTANCE)
    cell_shift: int = field(default=1, metadata=_DISTANCE)
    memory_length: int = field(default=1, metadata={**_DISTANCE, "minimum": 0})
    token_dropout: float = field(default=0.0, metadata=RATE)
    embedding_dropout: float = field(default=0.0, metadata=RATE)
    hidden_dropout: float = field(default=0.0, metadata=RATE)
    output_dropout: float = field(default=0.0, metadata=RATE)
    weight_dropout: float = field(default=0.0, metadata=RATE)
    weight_normalization: bool = True
    tie_weights: bool = True
    num_experts: int = field(default=1, metadata={"minimum": 1, "maximum": 100})
    expert_dropout: float = field(default=0.0, metadata=RATE)
    explicit: LevelsConfig | None = None


@dataclass(frozen=True)
class TrellisNetConfig(LanguageModelConfig):
    """A TrellisNet language model; see `LanguageModelConfig`."""

    experiment: Literal["trellisnet"]
    model: TrellisNetModelConfig


class TrellisNetJob(LanguageModelJob):
    """One variant of a TrellisNet."""

    def build_network(self, tokenizer):
        arguments = dataclasses.asdict(self.config.model)
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
