"""A DEQ-Transformer that predicts the next token of a text."""

from ...registry import Experiment, Score
from .schema import LanguageModelConfig

EXPERIMENT = Experiment(
    LanguageModelConfig,
    "job:LanguageModelJob",
    Score("loss", "loss [nats a token]", 1, ".3f"),
    generates=True,
)
