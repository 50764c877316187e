"""Builds, trains and measures the model of a small task."""

from ...evaluation.budgets import equilibrium
from ...runs.feed import ArrayFeed
from ...runs.job import ArrayJob
from ...runs.phases import phase_spans
from .build import build, training_peak
from .tasks import TASKS


class DefaultsFeed(ArrayFeed):
    """The examples of a task, in epochs of a length that the config sets."""

    @property
    def steps_per_epoch(self):
        return max(1, round(self.config.data.updates * super().steps_per_epoch))


class DefaultsJob(ArrayJob):
    """One variant of the model of a task."""

    feed_class = DefaultsFeed

    @staticmethod
    def draw(config, seed):
        return TASKS[config.task].draw(config, seed)

    def build_model(self):
        return build(self.config, self.feed.training.inputs.shape[1:])

    def loss(self):
        return TASKS[self.config.data.task].loss()

    def score(self, predictions, targets):
        return TASKS[self.config.data.task].score(predictions, targets)

    def evaluate(self, model, budgets):
        """See `Job`. Also measures the model at its own budget, and the memory of a
        training step."""
        own = equilibrium(model).solver.max_iter
        # Does not depend on the seed.
        memory = self.compiled.once(
            model, "memory", lambda: training_peak(self.config, self.feed.training)
        )
        spans = phase_spans(self.config, self.feed.steps_per_epoch)
        return {
            "own_budget": own,
            "updates": spans[-1].steps.stop,
            "memory": memory,
            **super().evaluate(model, sorted({own, *budgets})),
        }
