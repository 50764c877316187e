"""Peak memory of training steps of whole models, each in a fresh process."""

from .. import fresh_process, resident_memory
from . import image_models


def training_peaks(
    effort,
    chosen=image_models.MODELS,
    batch=image_models.BATCH,
    side=image_models.SIDE,
):
    """Returns by how many MiB memory grows in a training step, by model.

    That is without weights, gradients' accumulators and what the compiled step keeps.
    """
    del effort
    return {
        name: fresh_process.run(
            "training.benchmarks.mdeq.memory",
            {"batch": batch, "side": side, **model},
            environment=resident_memory.ENVIRONMENT,
        )
        for name, model in chosen.items()
    }


def _measure(**arguments):
    step = image_models.training_step(**arguments)
    return resident_memory.peak_growth(step, repeats=3)


if __name__ == "__main__":
    fresh_process.answer(_measure)
