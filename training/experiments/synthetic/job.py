"""Builds, trains and measures a scalar equilibrium model."""

import numpy as np

from ...runs.job import ArrayJob
from .build import build, draw
from .figure import draw_model
from .measure import measure


class SyntheticJob(ArrayJob):
    """One variant of the scalar model, for example with one weight of a regularizer."""

    draw = staticmethod(draw)

    def build_model(self):
        return build(self.config.model)

    def loss(self):
        return "mse"

    def score(self, predictions, targets):
        return np.sqrt(np.mean(np.square(predictions - targets)))

    def evaluate(self, model, budgets):
        """See `Job`. Draws the figure into the folder."""
        rows = super().evaluate(model, budgets)
        draw_model(self.folder / "surface.png", model, self.config)
        return {**measure(model, *self.feed.test, self.config.evaluation), **rows}
