"""Builds, trains and evaluates a language model."""

import math
from contextlib import nullcontext

import keras
import numpy as np

from deq_keras import models
from deq_keras.converters import locuslab
from deq_keras.layers import SolveScope

from ...errors import InputError, config_errors
from ...evaluation.budgets import BudgetBar, equilibrium, measure_at_budgets
from ...runs.components import STRATEGIES
from ...runs.feed import Feed, batch_sizes
from ...runs.job import Job, watch_equilibrium
from ...runs.phases import num_epochs
from .text import evaluation_segments, find, training_segments

# Config keys of explicit networks that replace the equilibrium.
_EXPLICIT = {
    "explicit": (
        models.ExplicitTransformerBackbone,
        models.ExplicitTransformerCausalLM,
    ),
    "transformer_xl": (models.TransformerXLBackbone, models.TransformerXLCausalLM),
}


class TextFeed(Feed):
    """Segments of a `Text`, in which each sample of a batch continues in the next."""

    @property
    def batch_sizes(self):
        return batch_sizes(self.config.data)

    @property
    def steps_per_epoch(self):
        config = self.config.data
        if config.steps_per_epoch is not None:
            return config.steps_per_epoch
        return int(training_segments(config, self.data.train).cardinality())

    def fit_arguments(self, steps):
        every_epochs = self.config.evaluation.every_epochs
        # A phase in steps has as many epochs as the text determines.
        last = num_epochs(self.config.phases, lambda: self.steps_per_epoch)
        if every_epochs > last:
            raise InputError(
                f"`evaluation.every_epochs` must be at most {last}, the epochs of all "
                "phases, so that there is a validation loss. Received: "
                f"every_epochs={every_epochs}."
            )
        config = self.config.data
        training = training_segments(config, self.data.train, steps.start)
        validation = evaluation_segments(config, self.data.validation)
        size = config.evaluation_batch_size
        num_segments = int(validation.cardinality()) * size
        return {
            "x": self.distribution.batches(training),
            "steps_per_epoch": self.steps_per_epoch,
            "validation_data": self.distribution.batches(validation),
            "validation_steps": self.distribution.validation_steps(num_segments, size),
            "validation_freq": every_epochs,
        }

    def select_samples(self):
        """Returns validation segments, int32 `(num_samples, length)`, with as many
        positions as a training step has keys; of a short text, fewer or shorter ones.
        """
        ids = self.data.validation
        length = self.config.data.length + self.config.model.memory_length
        length = min(length, len(ids))
        num_samples = min(self.config.evaluation.num_samples, len(ids) // length)
        return ids[: num_samples * length].reshape(num_samples, length)

    def test_segments(self):
        """Returns the examples of the test text or, without one, of the validation.

        Raises:
            InputError: If the text is too short.
        """
        ids = self.data.test if len(self.data.test) else self.data.validation
        return evaluation_segments(self.config.data, ids)

    def save(self):
        super().save()
        self.data.keep_vocabulary(self.folder)


class LanguageModelJob(Job):
    """One variant of a language model. `load_data` returns the `Text`."""

    feed_class = TextFeed
    monitor = "val_loss"
    mode = "min"

    @classmethod
    def load_data(cls, config, folder):
        return find(config, folder)

    def build_model(self):
        self.feed.test_segments()  # Raises `InputError` early if it is too short.
        return self.build_network(self.data.tokenizer)

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
                for ignored in (*STRATEGIES, "num_explicit_layers"):
                    del arguments[ignored]
                arguments |= layers
        preprocessor = models.DEQTransformerCausalLMPreprocessor(tokenizer)
        return assemble(self.config, preprocessor, *classes, arguments)

    def load_reference(self, state_dict):
        model, size = self.config.model, self.data.tokenizer.vocabulary_size()
        # A TrellisNet has only the first key.
        keys = ("explicit", "transformer_xl", "num_explicit_layers")
        if any(getattr(model, key, None) for key in keys):
            raise InputError(
                "Checkpoints of the authors' code are equilibria of the embedding. Set "
                "model.explicit and model.transformer_xl to null, and "
                "model.num_explicit_layers to 0. Received: explicit layers."
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

    def objective(self):
        return {}  # The model computes its loss.

    def make_callbacks(self, model):
        max_iter = self.config.evaluation.max_iter
        return watch_equilibrium(model, self.feed.samples, max_iter)

    def measure_model(self, model, budgets, data=None, tol=None):
        # Not with `measure`: segments must follow each other, for the memory.
        segments = data or self.feed.test_segments()
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
        segments = data or self.feed.test_segments()
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
        return causal_lm, self.feed.samples


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
