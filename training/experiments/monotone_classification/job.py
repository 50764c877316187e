"""How a monotone classifier is made."""

from ..classification.job import ClassificationJob
from .build import build_monotone


class MonotoneJob(ClassificationJob):
    """One variant of a monotone classifier.

    Args:
        config: a `MonotoneClassificationConfig`.
        data: the `ImageData`.
        folder: of the run.
    """

    def build_model(self):
        return build_monotone(self.config.model, self.data, self.config.precision)
