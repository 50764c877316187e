"""Wall times of training steps of whole models, each in a fresh process."""

from .. import fresh_process, timing
from . import image_models


def training_times(
    effort,
    chosen=image_models.MODELS,
    batch=image_models.BATCH,
    side=image_models.SIDE,
):
    """Returns the `timing.Duration` of a training step, by model."""
    return {
        name: fresh_process.run(
            "mdeq.duration",
            {"effort": effort, "batch": batch, "side": side, **model},
        )
        for name, model in chosen.items()
    }


def _measure(effort, **arguments):
    step = image_models.training_step(**arguments)
    return timing.measure(step, timing.Effort(*effort))


if __name__ == "__main__":
    fresh_process.answer(_measure)
