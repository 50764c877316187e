"""Small configs and models of the study of the defaults."""

import copy

from training.config import reading as configs
from training.studies.defaults.model import build
from training.studies.defaults.tasks import TASKS

TWIN = {
    "equilibrium.solver": {
        "class_name": "fixed_point_iteration",
        "max_iter": 3,
        "tol": None,
    },
    "equilibrium.gradient": "unrolled",
    "equilibrium.regularizer": None,
}
SHORT = {
    "experiment": "defaults",
    "seeds": [3],
    "tasks": [
        {
            "name": "regression",
            "units": 8,
            "epochs": 10,
            "batch_size": 32,
            "train_examples": 512,
            "test_examples": 64,
            "optimizer": {"learning_rate": 0.02},
        },
    ],
    "equilibrium": {"solver": {"class_name": "anderson", "max_iter": 5}},
    "variants": {"default": {}, "twin": TWIN},
    "references": ["twin"],
    "measurement": {"long_budget": 12, "num_samples": 4, "max_iter": 40},
}


def config(**changes):
    return configs.resolve({**copy.deepcopy(SHORT), **changes})


def task_config(name, units=8):
    sizes = {"train_examples": 40, "test_examples": 20}
    return config(tasks=[{"name": name, "units": units, "epochs": 1, **sizes}]).tasks[0]


def model_of(name, variant="default", seed=0):
    """An untrained model and the test examples of its task."""
    task = task_config(name)
    _, testing = TASKS[name].draw(task, seed)
    equilibrium = configs.variant(config(), variant).equilibrium
    return build(equilibrium, task, testing.inputs.shape[1:], seed), testing
