"""A DEQ-TrellisNet, or a TrellisNet, that predicts the next token of a text."""

from ...registry import Experiment, Score
from .schema import TrellisNetConfig

EXPERIMENT = Experiment(
    TrellisNetConfig,
    "job:TrellisNetJob",
    Score("loss", "loss [nats a token]", 1, ".3f"),
    generates=True,
)
