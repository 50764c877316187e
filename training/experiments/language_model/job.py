"""How a language model is made, compiled and fed."""

import dataclasses
import operator

import keras

import deq_keras
from training.build import build_optimizer
from training.errors import InputError
from training.experiments.language_model.text import (
    evaluation_segments,
    training_segments,
)
from training.phases import phase_spans
from training.train import Job


class LanguageModelJob(Job):
    """One variant of a language model.

    Args:
        config: a `LanguageModelConfig`.
        text: the `Text`.
    """

    def __init__(self, config, text):
        super().__init__(config, "val_loss", operator.lt)
        self.text = text

    def build(self):
        config = self.config
        model = build_model(config, self.text.vocabulary.size)
        spans = phase_spans(config)
        segments = training_segments(config.data, self.text.train)
        optimizer = build_optimizer(
            config.optimizer,
            spans[-1].epochs.stop,
            int(segments.cardinality()),
            config.precision,
        )
        return model, optimizer, spans

    def equilibrium(self, model):
        return model.causal_lm.backbone.deq

    def compile(self, model, optimizer):
        model.compile(optimizer, jit_compile=self.config.jit_compile)

    def fit_arguments(self, epochs):
        config = self.config.data
        return {
            "x": training_segments(config, self.text.train),
            "validation_data": evaluation_segments(config, self.text.validation),
        }


def build_model(config, vocabulary_size):
    """Returns the `NextTokenLossModel` of a `LanguageModelConfig`.

    Raises:
        InputError: if the model refuses an argument.
    """
    arguments = dataclasses.asdict(config.model)
    policy = keras.DTypePolicy(config.precision)
    try:
        backbone = deq_keras.models.DEQTransformerBackbone(
            vocabulary_size, dtype=policy, **arguments
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"`model`: {error}") from error
    causal_lm = deq_keras.models.DEQTransformerCausalLM(backbone)
    return deq_keras.models.NextTokenLossModel(causal_lm, name="language_model")
