"""What jobs on labelled images have in common: how the splits feed a model."""

from ..data.pipeline import evaluation_batches, steps_per_epoch
from .job import Job, batch_sizes


class ImageJob(Job):
    """One variant of a model of images; see `Job`.

    Args:
        config: with `data.batch_size` and `data.evaluation_batch_size`.
        data: with the splits `training`, `validation` and `test`.
        folder: of the run.
        distribution: of the training.
    """

    @property
    def batch_sizes(self):
        return batch_sizes(self.config.data)

    @property
    def steps_per_epoch(self):
        return steps_per_epoch(
            self.data.training,
            self.config.data.batch_size,
            self.distribution.drops_remainder,
        )

    def training_batches(self, epochs, share):
        """Returns the stream of a `BatchShard` of the training batches of a `range` of
        epochs."""
        raise NotImplementedError

    def fit_arguments(self, epochs):
        split, size = self.data.validation, self.config.data.evaluation_batch_size
        return {
            "x": self.distribution.batches(
                lambda share: self.training_batches(epochs, share)
            ),
            "validation_data": self.distribution.batches(
                lambda share: evaluation_batches(split, size, share)
            ),
            "steps_per_epoch": self.steps_per_epoch,
            "validation_steps": self.distribution.validation_steps(len(split), size),
        }

    def batches(self, model, split):
        """Returns batches of a split as the model takes them, in their order."""
        batches = evaluation_batches(split, self.config.data.evaluation_batch_size)
        preprocessor = getattr(model, "preprocessor", None)
        return batches if preprocessor is None else batches.map(preprocessor)

    def samples(self, model):
        split = self.data.test.part(0, self.config.evaluation.num_samples)
        return (images for images, _ in self.batches(model, split))
