"""Builds, trains and measures a network of a task."""

import keras

from ...errors import config_errors
from ...runs.job import ArrayJob
from ...runs.phases import equilibrium
from . import games, graphs, optimization, steady_states

TASKS = {
    "reaction_diffusion": steady_states.REACTION_DIFFUSION,
    "communities": graphs.COMMUNITIES,
    "budget": optimization.BUDGET,
    "transport": optimization.TRANSPORT,
    "traffic": games.TRAFFIC,
}


class WorldJob(ArrayJob):
    """One network of a task; see `Job`. Its data have a dict of all test sets, too."""

    evaluation_batch_size = 16

    @property
    def task(self):
        return TASKS[self.config.data.task]

    @staticmethod
    def draw(config, seed):
        training, tests = TASKS[config.task].draw(config.num_train, seed)
        return training, next(iter(tests.values())), tests

    def build_model(self):
        inputs = keras.Input(self.task.input_shape)
        if self.config.model.network == "plain":
            return keras.Model(inputs, self.task.plain(inputs))
        with config_errors("model"):
            layer = equilibrium(self.task.cell(), self.config.model)
            outputs = self.task.decode(layer(self.task.encode(inputs)))
            return keras.Model(inputs, outputs)

    def loss(self):
        return self.task.loss

    def score(self, predictions, targets):
        return self.task.error(predictions, targets)

    def evaluate(self, model, budgets):
        """See `Job`. Also measures all test sets at the largest budget."""
        sets = {
            name: self.measure_model(model, [max(budgets)], pair)[0]
            for name, pair in self.data(self.config.seed)[2].items()
        }
        return {**super().evaluate(model, budgets), "test_sets": sets}
