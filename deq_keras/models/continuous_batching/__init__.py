"""Training that continues from the states of the previous update."""

from deq_keras.models.continuous_batching.continuous_batching_model import (
    ContinuousBatchingModel,
    SolveSegment,
)

__all__ = ["ContinuousBatchingModel", "SolveSegment"]
