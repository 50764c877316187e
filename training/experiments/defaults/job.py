"""Builds, trains and measures the model of a small task."""

import functools

from ...evaluation.budgets import equilibrium
from ...runs.job import ArrayJob
from ...runs.phases import phase_spans
from .build import build, training_peak
from .tasks import TASKS


class DefaultsJob(ArrayJob):
    """One variant of the model of a task."""

    @staticmethod
    def load_data(config, folder):
        del folder
        draw = TASKS[config.task].draw
        return functools.cache(functools.partial(draw, config))

    @property
    def steps_per_epoch(self):
        return max(1, round(self.config.data.updates * super().steps_per_epoch))

    def build_model(self):
        return build(self.config, self.training.inputs.shape[1:])

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
            model, "memory", lambda: training_peak(self.config, self.training)
        )
        spans = phase_spans(self.config, self.steps_per_epoch)
        return {
            "own_budget": own,
            "updates": spans[-1].steps.stop,
            "memory": memory,
            **super().evaluate(model, sorted({own, *budgets})),
        }
