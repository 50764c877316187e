"""A DEQ-Transformer that predicts the next token of a text."""

from training.experiments.language_model.schema import LanguageModelConfig
from training.registry import Experiment, Score

EXPERIMENT = Experiment(
    LanguageModelConfig,
    "job:LanguageModelJob",
    Score("loss", "loss [nats a token]", 1, ".3f"),
)
