"""The config of the models of the world, with all defaults."""

from typing import Literal

from ...config import keys
from ...config.fields import Components, Config, EvaluationConfig, VariantsConfig

TASKS = ("reaction_diffusion", "communities", "budget", "transport", "traffic")


class DataConfig(Config):
    """The examples of a task, drawn from the seed of the run.

    Args:
        task: Name of the task.

            - `reaction_diffusion`: the steady concentration of a substance, from its
              sources. The reaction is unknown.
            - `communities`: the class of each node of a graph, from one known node of
              each class. The strength of an edge of given length is unknown.
            - `budget`: what a buyer with a budget buys, from the budget and the values
              of the goods. Prices and preferences are unknown.
            - `transport`: who travels where, from the numbers at origins and
              destinations. The costs are unknown.
            - `traffic`: the flow on each road, from demands and closed roads. Travel
              times and capacities are unknown.
        num_train: Positive integer. Training examples.
        batch_size: Positive integer. Batch size of training.
    """

    task: Literal[TASKS]
    num_train: keys.integer(le=1_000_000) = 256
    batch_size: keys.Batch = 16


class ModelConfig(Components):
    """A network for the task.

    Args:
        network: `equilibrium`, the cell with the known function; or `plain`, layers
            that know nothing of it: convolutions, graph convolutions or dense layers.
    """

    network: Literal["equilibrium", "plain"] = "equilibrium"


class WorldEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`.

    The report has the errors of all test sets at the largest budget.
    """

    budgets: keys.Distinct[keys.Budget] = [4, 8, 16, 30, 60]
    num_samples: keys.Batch = 8
    max_iter: keys.Budget = 60


class WorldConfig(VariantsConfig):
    """Models of the world, and networks that do not know it; see `VariantsConfig`."""

    experiment: Literal["world"]
    model: ModelConfig
    data: DataConfig
    evaluation: WorldEvaluationConfig = WorldEvaluationConfig()
