"""Makes the model that is trained in segments of searches."""

import deq_keras

from ..errors import InputError
from .refusals import refusals


def in_segments(model, examples, batch_size, config):
    """Returns the `ContinuousBatchingModel` that trains a model in segments.

    Args:
        model: a built `keras.Model` that calls one equilibrium layer.
        examples: what `fit` gets: `(x, y)` or `(x, y, sample_weight)`, arrays or specs.
        batch_size: int. The fresh samples of a training step.
        config: a `SegmentsConfig`.

    Raises:
        InputError: if it is of no use for such batches or such a model.
    """
    if config.in_search <= batch_size:
        raise InputError(
            "`segments.in_search` must be larger than a batch, the samples that every "
            f"training step admits. Received: in_search={config.in_search}, "
            f"batch_size={batch_size}."
        )
    with refusals("segments"):
        return deq_keras.models.ContinuousBatchingModel(
            model,
            examples,
            config.in_search,
            config.max_segments,
            config.finished,
            config.inherited,
        )
