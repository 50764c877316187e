"""Networks that copy symbols over a long delay, which tests their memory."""

from ...registry import Experiment, Score
from .schema import CopyMemoryConfig

EXPERIMENT = Experiment(
    CopyMemoryConfig,
    "job:CopyMemoryJob",
    Score("loss", "test loss [nats a position]", 1, ".2e"),
)
