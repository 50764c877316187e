"""How a language model is made, compiled and fed."""

import dataclasses
import operator

import keras

import deq_keras
from training.build import build_optimizer
from training.errors import InputError
from training.experiments.language_model.text import (
    evaluation_segments,
    sample_segments,
    steps_per_epoch,
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
        optimizer = build_optimizer(
            config.optimizer,
            spans[-1].epochs.stop,
            steps_per_epoch(config.data, self.text.train),
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
            "x": training_segments(config, self.text.train, epochs.start),
            "steps_per_epoch": config.steps_per_epoch,
            "validation_data": evaluation_segments(config, self.text.validation),
            "validation_freq": self.config.evaluation.every_epochs,
        }

    def callbacks(self, model):
        config, backbone = self.config.evaluation, model.causal_lm.backbone
        if config.num_samples == 0:
            return []
        samples = self.samples()
        return [
            deq_keras.callbacks.EquilibriumDiagnostics(
                backbone.deq, lambda: backbone.token_embedding(samples), config.max_iter
            )
        ]

    def samples(self):
        """Returns validation segments with as many positions as a training step has
        keys, int32 `(num_samples, length)`."""
        length = self.config.data.length + self.config.model.memory_length
        num_samples = self.config.evaluation.num_samples
        return sample_segments(self.text.validation, num_samples, length)


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
