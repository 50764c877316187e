"""Builds, trains and evaluates a language model."""

import math
from contextlib import nullcontext

import keras
import numpy as np

from deq_keras import models
from deq_keras.converters import locuslab
from deq_keras.diagnostics import ModelParts
from deq_keras.layers import SolveScope

from ...errors import InputError, config_errors
from ...evaluation.budgets import BudgetBar, equilibrium, measure_at_budgets
from ...runs.components import STRATEGIES
from ...runs.job import Job, batch_sizes, watch_equilibrium
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

    `load_data` returns the `Text`, and a function that writes the vocabulary into a
    folder.
    """

    monitor = "val_loss"
    mode = "min"

    @staticmethod
    def load_data(config, folder):
        return find(config, folder)

    @property
    def text(self):
        """Returns the `Text`."""
        return self.data[0]

    def save_assets(self):
        super().save_assets()
        _, keep_vocabulary = self.data
        keep_vocabulary(self.folder)

    @property
    def batch_sizes(self):
        return batch_sizes(self.config.data)

    @property
    def steps_per_epoch(self):
        return steps_per_epoch(self.config.data, self.text.train)

    def build(self):
        # A phase in steps has as many epochs as the text determines.
        every_epochs = self.config.evaluation.every_epochs
        if every_epochs > self.num_epochs:
            raise InputError(
                f"`evaluation.every_epochs` must be at most {self.num_epochs}, the "
                "epochs of all phases, so that there is a validation loss. Received: "
                f"every_epochs={every_epochs}."
            )
        return super().build()

    def build_model(self):
        # Raises `InputError` if the text is too short.
        evaluation_segments(self.config.data, self._tested)
        return self.build_network(self.text.tokenizer)

    def build_network(self, tokenizer):
        """Returns the `NextTokenLossModel` of the config.

        Raises:
            InputError: If an argument of the model is invalid.
        """
        arguments = self.config.model.model_dump()
        classes = models.DEQTransformerBackbone, models.DEQTransformerCausalLM
        for name, of_explicit in _EXPLICIT.items():
            layers = arguments.pop(name)
            if layers is not None:
                classes = of_explicit
                for strategy in STRATEGIES:
                    del arguments[strategy]
                arguments |= layers
        preprocessor = models.DEQTransformerCausalLMPreprocessor(tokenizer)
        return assemble(self.config, preprocessor, *classes, arguments)

    def load_reference(self, state_dict):
        model, size = self.config.model, self.text.tokenizer.vocabulary_size()
        if model.explicit is not None or getattr(model, "transformer_xl", None):
            raise InputError(
                "Checkpoints of the authors' code are equilibria. Set model.explicit "
                "and model.transformer_xl to null. Received: an explicit network."
            )
        causal_lm = self.convert(state_dict)
        if causal_lm.backbone.vocabulary_size != size:
            raise InputError(
                f"The text of `data` must have {causal_lm.backbone.vocabulary_size} "
                f"tokens, like the checkpoint. Received: {size} tokens."
            )
        return models.NextTokenLossModel(causal_lm, name="language_model")

    def convert(self, state_dict):
        """Returns the causal language model of a state dict of the authors' code."""
        model = self.config.model
        settings = {"cutoffs": model.cutoffs} if model.cutoffs else {}
        return locuslab.load_deq_transformer(
            state_dict,
            solver=model.solver,
            gradient=model.gradient,
            regularizer=model.regularizer,
            dtype=keras.DTypePolicy(self.config.precision),
            pre_lnorm=model.normalize_first,
            mem_len=model.memory_length,
            local_size=model.local_size or 0,
            **settings,
        )

    def compile(self, model, optimizer):
        model.compile(optimizer, jit_compile=self.config.jit_compile)

    def feed(self, steps):
        config = self.config.data
        training = training_segments(config, self.text.train, steps.start)
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

    def make_callbacks(self, model):
        return watch_equilibrium(self, model, self.sample_inputs)

    def split(self, model):
        # The memory of segments around the layer is no model, which could be split.
        causal_lm, layer = model.causal_lm, equilibrium(model)
        return ModelParts(
            causal_lm.backbone.token_embedding,
            layer,
            lambda state: causal_lm.softmax(layer.cell.features(state)),
        )

    def select_samples(self):
        """Returns validation segments, int32 `(num_samples, length)`, with as many
        positions as a training step has keys."""
        length = self.config.data.length + self.config.model.memory_length
        num_samples = self.config.evaluation.num_samples
        return sample_segments(self.text.validation, num_samples, length)

    def measure_model(self, model, budgets, data=None, tol=None):
        segments = data or evaluation_segments(self.config.data, self._tested)
        layer = equilibrium(model)
        if layer is None:
            budgets = [model.causal_lm.backbone.num_layers]
        return losses_at_budgets(model, layer, segments, budgets, tol)

    def measure(self, predict, budgets, model=None, data=None):
        memory_length = self.config.model.memory_length
        if memory_length:
            raise InputError(
                "An export knows no segments before, so its loss is not that of this "
                f"model. Received: model.memory_length={memory_length}."
            )
        segments = data or evaluation_segments(self.config.data, self._tested)
        batches = segments.map(
            lambda examples, targets: (examples["token_ids"], targets)
        )
        return measure_at_budgets(
            predict, batches, token_losses, budgets, loss_and_perplexity
        )

    def prepare_export(self, model):
        """See `Job`. The export returns log-probabilities of independent texts, without
        the memory, which would connect the texts of different callers."""
        causal_lm = model.causal_lm
        causal_lm.backbone.memory_length = 0
        return causal_lm, self.sample_inputs


def assemble(config, preprocessor, backbone_cls, task_cls, arguments, **of_task):
    """Builds the `NextTokenLossModel` of a backbone and a task.

    Args:
        config: A `VariantsConfig`.
        preprocessor: Preprocessor of the task, with a tokenizer.
        backbone_cls: Class of the backbone.
        task_cls: Class of the task.
        arguments: Dict of arguments of the backbone.
        **of_task: Arguments of the task.

    Raises:
        InputError: If an argument is invalid.
    """
    policy = keras.DTypePolicy(config.precision)
    with config_errors("model"):
        size = preprocessor.tokenizer.vocabulary_size()
        backbone = backbone_cls(size, dtype=policy, **arguments)
        causal_lm = task_cls(backbone, preprocessor=preprocessor, **of_task)
    return models.NextTokenLossModel(causal_lm, name="language_model")


def losses_at_budgets(model, layer, segments, budgets, tol=None):
    """Measures the loss of a text at each budget.

    Args:
        model: A `NextTokenLossModel`.
        layer: The `DEQ` layer of the model, or `None` for an explicit network, whose
            only budget is the number of its layers.
        segments: Dataset of examples in the order of the text.
        budgets: List of positive integers, each a `max_iter`.
        tol: Non-negative float. Tolerance of the solves. Defaults to `None`, the
            tolerance of the solver.

    Returns:
        List of dicts with `budget`, `loss` (nats per token), `perplexity`, the means
        over samples of `residual` and `evaluations`, and the fraction `converged`.
    """
    model.compile(keras.optimizers.SGD())
    rows, bar = [], BudgetBar(budgets, len(segments))
    for budget in budgets:
        scope = SolveScope(layer, budget, tol) if layer else nullcontext()
        with scope:
            logs = model.evaluate(
                segments, verbose=0, callbacks=[_Counted(bar, budget)], return_dict=True
            )
        statistics = {"residual": None, "evaluations": budget, "converged": None}
        if layer is not None:
            statistics = {name: logs[f"{layer.name}_{name}"] for name in statistics}
        # Averages over tokens. Keras' mean loss gives a short last segment full weight.
        loss = math.log(logs["perplexity"])
        scores = {"loss": loss, "perplexity": logs["perplexity"]}
        rows.append({"budget": budget, **scores, **statistics})
    return rows


class _Counted(keras.callbacks.Callback):
    """Counts the segments of an evaluation in a `BudgetBar`."""

    def __init__(self, bar, budget):
        super().__init__()
        self._bar = bar
        self._budget = budget

    def on_test_batch_end(self, batch, logs=None):
        self._bar.add(self._budget)


def token_losses(log_probabilities, targets):
    """Returns the loss of each token, in nats.

    Args:
        log_probabilities: Array `(batch, length, vocabulary)`.
        targets: Integer array `(batch, length)`.
    """
    targets = np.asarray(targets)[..., None]  # (batch, length, 1)
    found = np.take_along_axis(np.asarray(log_probabilities), targets, axis=-1)
    return {"loss": -found.ravel()}


def loss_and_perplexity(scores):
    """Returns the mean `loss` over all tokens and its `perplexity`."""
    losses = np.concatenate([one["loss"] for one in scores])
    loss = float(np.mean(losses, dtype="float64"))
    return {"loss": loss, "perplexity": math.exp(loss)}
