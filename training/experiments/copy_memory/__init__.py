"""Networks that copy symbols over a long delay: the memory that they have."""

from ...registry import Experiment, Score
from .schema import CopyMemoryConfig

EXPERIMENT = Experiment(
    CopyMemoryConfig,
    "job:CopyMemoryJob",
    Score("loss", "test loss [nats a position]", 1, ".2e"),
)
