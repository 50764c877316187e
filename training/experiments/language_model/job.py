"""Builds, trains and evaluates a language model."""

import dataclasses
import operator

import keras

from deq_keras import models

from ...errors import InputError
from ...evaluation.readout import EncoderSolverHead, measure_at_budgets
from ...runs.job import Job, batch_sizes
from ...runs.phases import STRATEGIES
from .measure import (
    loss_and_perplexity,
    loss_of_layers,
    losses_at_budgets,
    token_losses,
)
from .text import (
    evaluation_segments,
    find,
    sample_segments,
    steps_per_epoch,
    training_segments,
)

# Config keys of explicit networks that replace the equilibrium.
_EXPLICIT = {
    "explicit": (
        models.ExplicitTransformerBackbone,
        models.ExplicitTransformerCausalLM,
    ),
    "transformer_xl": (models.TransformerXLBackbone, models.TransformerXLCausalLM),
}


class LanguageModelJob(Job):
    """One variant of a language model.

    Args:
        config: A `LanguageModelConfig`.
        load: Function that returns the `Text`, and a function that writes the
            vocabulary into a folder.
        folder: `pathlib.Path` of the run. Stores the vocabulary.
        distribution: Distribution of the training.
    """

    monitor = "val_loss"
    is_better = staticmethod(operator.lt)

    @staticmethod
    def load_data(config, folder):
        return find(config, folder)

    @property
    def text(self):
        """Returns the `Text`."""
        return self.data[0]

    def keep(self):
        super().keep()
        _, keep_vocabulary = self.data
        keep_vocabulary(self.folder)

    @property
    def batch_sizes(self):
        return batch_sizes(self.config.data)

    @property
    def steps_per_epoch(self):
        return steps_per_epoch(self.config.data, self.text.train)

    def build_model(self):
        # Raises `InputError` if the text is too short.
        evaluation_segments(self.config.data, self._tested)
        return self.make_model(self.config, self.text.tokenizer)

    @staticmethod
    def make_model(config, tokenizer):
        """Builds the `NextTokenLossModel` of a config."""
        return build_model(config, tokenizer)

    def equilibrium(self, model):
        return getattr(model.causal_lm.backbone, "deq", None)

    def compile(self, model, optimizer):
        model.compile(optimizer, jit_compile=self.config.jit_compile)

    def fit_arguments(self, epochs):
        config = self.config.data
        training = training_segments(config, self.text.train, epochs.start)
        validation = evaluation_segments(config, self.text.validation)
        size = config.evaluation_batch_size
        num_segments = int(validation.cardinality()) * size
        return {
            "x": self._batches(training),
            "steps_per_epoch": self.steps_per_epoch,
            "validation_data": self._batches(validation),
            "validation_steps": self.distribution.validation_steps(num_segments, size),
            "validation_freq": self.config.evaluation.every_epochs,
        }

    def _batches(self, segments):
        return self.distribution.batches(lambda share: segments.map(share.rows))

    @property
    def _tested(self):
        return self.text.test if len(self.text.test) else self.text.validation

    def callbacks(self, model):
        if self.equilibrium(model) is None:
            return []
        return [self.diagnostics(model, self.sample_inputs)]

    def split(self, model):
        causal_lm = model.causal_lm
        embedding, layer = causal_lm.backbone.token_embedding, causal_lm.backbone.deq
        return EncoderSolverHead(
            embedding,
            layer,
            lambda state: causal_lm.softmax(layer.cell.features(state)),
        )

    def first_inputs(self):
        """Returns validation segments, int32 `(num_samples, length)`, with as many
        positions as a training step has keys."""
        length = self.config.data.length + self.config.model.memory_length
        num_samples = self.config.evaluation.num_samples
        return sample_segments(self.text.validation, num_samples, length)

    def evaluate(self, model, budgets):
        segments = evaluation_segments(self.config.data, self._tested)
        layer = self.equilibrium(model)
        if layer is None:
            num_layers = model.causal_lm.backbone.num_layers
            return [loss_of_layers(model, num_layers, segments)]
        return losses_at_budgets(model, layer, segments, budgets)

    def evaluate_export(self, exported, budgets):
        memory_length = self.config.model.memory_length
        if memory_length:
            raise InputError(
                "An export knows no segments before, so its loss is not that of this "
                f"model. Received: model.memory_length={memory_length}."
            )
        segments = evaluation_segments(self.config.data, self._tested)
        batches = segments.map(
            lambda examples, targets: (examples["token_ids"], targets)
        )
        return measure_at_budgets(
            exported.answer(), batches, token_losses, budgets, loss_and_perplexity
        )

    def servable(self, model):
        """See `Job`. The export returns log-probabilities of independent texts, without
        the memory, which would connect the texts of different callers."""
        causal_lm = model.causal_lm
        causal_lm.backbone.memory_length = 0
        return causal_lm, self.sample_inputs


def build_model(config, tokenizer):
    """Builds the `NextTokenLossModel` of a `LanguageModelConfig`.

    Raises:
        InputError: If an argument of the model is invalid.
    """
    arguments = dataclasses.asdict(config.model)
    backbone_cls, task_cls = (
        models.DEQTransformerBackbone,
        models.DEQTransformerCausalLM,
    )
    for name, classes in _EXPLICIT.items():
        layers = arguments.pop(name)
        if layers is not None:
            backbone_cls, task_cls = classes
            arguments = {**_without_parts(arguments), **layers}
    policy = keras.DTypePolicy(config.precision)
    try:
        backbone = backbone_cls(tokenizer.vocabulary_size(), dtype=policy, **arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"`model`: {error}") from error
    preprocessor = models.DEQTransformerCausalLMPreprocessor(tokenizer)
    causal_lm = task_cls(backbone, preprocessor=preprocessor)
    return models.NextTokenLossModel(causal_lm, name="language_model")


def _without_parts(arguments):
    return {name: value for name, value in arguments.items() if name not in STRATEGIES}
