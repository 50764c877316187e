"""Small configs and jobs of the experiment `defaults`."""

import copy

from training.config import reading as configs
from training.runs import variants
from training.runs.work_directory import WorkDirectory

TWIN = {
    "model.solver": {"class_name": "fixed_point_iteration", "max_iter": 3, "tol": None},
    "model.gradient": "unrolled",
    "model.regularizer": None,
}
SHORT = {
    "experiment": "defaults",
    "tensorboard": False,
    "data": {
        "task": "regression",
        "batch_size": 32,
        "train_examples": 512,
        "test_examples": 64,
    },
    "model": {"units": 8, "solver": {"class_name": "anderson", "max_iter": 5}},
    "optimizer": {"learning_rate": 0.02},
    "phases": [{"epochs": 10}],
    "variants": {"default": {}, "twin": TWIN},
    "references": ["twin"],
    "evaluation": {"budgets": [12], "num_samples": 4, "max_iter": 12},
}


def config(**changes):
    """Returns the config with values replaced at paths such as `data__task`."""
    paths = ((name.replace("__", "."), value) for name, value in changes.items())
    return configs.resolve(copy.deepcopy(SHORT), list(paths))


def job(name, folder="unused", variant="default", **changes):
    """Returns the job of a variant on a small task."""
    sizes = {"data__train_examples": 40, "data__test_examples": 20}
    whole = config(data__task=name, **sizes, **changes)
    return variants.make_jobs(WorkDirectory(folder, whole), [variant])[variant]
