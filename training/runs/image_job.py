"""What jobs on labelled images have in common: how the splits feed a model."""

from ..data.pipeline import evaluation_batches, steps_per_epoch
from .job import Job


class ImageJob(Job):
    """One variant of a model of images; see `Job`.

    Args:
        config: with `data.batch_size` and `data.evaluation_batch_size`.
        data: with the splits `training`, `validation` and `test`.
        folder: of the run.
    """

    @property
    def steps_per_epoch(self):
        return steps_per_epoch(self.data.training, self.config.data.batch_size)

    def training_batches(self, epochs):
        """Returns the stream of the training batches of a `range` of epochs."""
        raise NotImplementedError

    def fit_arguments(self, epochs):
        return {
            "x": self.training_batches(epochs),
            "validation_data": evaluation_batches(
                self.data.validation, self.config.data.evaluation_batch_size
            ),
            "steps_per_epoch": self.steps_per_epoch,
        }

    def batches(self, model, split):
        """Returns batches of a split as the model takes them, in their order."""
        batches = evaluation_batches(split, self.config.data.evaluation_batch_size)
        preprocessor = getattr(model, "preprocessor", None)
        return batches if preprocessor is None else batches.map(preprocessor)

    def samples(self, model):
        split = self.data.test.part(0, self.config.evaluation.num_samples)
        return (images for images, _ in self.batches(model, split))
