"""Peak memory of training steps of whole models."""

import functools

from .. import memory
from . import image_models


def training_peaks(
    effort,
    chosen=image_models.MODELS,
    batch=image_models.BATCH,
    side=image_models.SIDE,
):
    """Returns by how many MiB memory grows in a training step, by model, or that this
    is not measurable here; see `memory.peaks`.

    That is without weights, gradients' accumulators and what the compiled step keeps.
    """
    del effort
    step = functools.partial(image_models.training_step, batch=batch, side=side)
    return memory.peaks(
        {name: functools.partial(step, **model) for name, model in chosen.items()}
    )
