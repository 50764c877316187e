"""Experiments and studies: what each declares, and where they are found.

A folder of `training.experiments` or `training.studies` declares itself in its
`__init__`, which must not import TensorFlow:

    EXPERIMENT = Experiment(ClassificationConfig, "job:ClassificationJob", ACCURACY)

The name of the folder is the `experiment` of its configs. There is no list of them.
"""

import importlib
import pkgutil
from typing import NamedTuple

from .errors import InputError

# By name, so that each may import what is declared here.
_GROUPS = (".experiments", ".studies")


class Score(NamedTuple):
    """What the variants of an experiment are compared by.

    Attributes:
        name: str. Its key in logs and rows.
        label: String. Name with its unit.
        scale: float. Its unit in the rows over that of the label.
        digits: str. Its format.
    """

    name: str
    label: str
    scale: float
    digits: str


ACCURACY = Score("accuracy", "test accuracy [%]", 100, ".1f")


class Experiment(NamedTuple):
    """Models that are trained in phases and compared, a job for each variant.

    Attributes:
        schema: dataclass of its configs, a `VariantsConfig`.
        job: str `module:class` in the folder of the experiment. The `Job` of a variant,
            imported when it is run.
        score: the `Score` of its tables.
        tables: str `module:function` in the folder of the experiment, or `None`. What a
            report has to say beside it, text or `None`: a function of the
            `WorkDirectory`, which needs no TensorFlow.
    """

    schema: type
    job: str
    score: Score
    tables: str | None = None


class Study(NamedTuple):
    """What trains and compares many small models in a way of its own.

    Attributes:
        schema: dataclass of its configs.
        run: str `module:function` in the folder of the study. A function of the config
            and its `WorkDirectory`, imported when it is run.
    """

    schema: type
    run: str


def names():
    """Returns the names of all experiments and studies."""
    return sorted(_packages())


def scored():
    """Returns the names of those whose runs have tables of a score."""
    return [name for name in names() if isinstance(find(name), Experiment)]


def find(name):
    """Returns the `Experiment` or `Study` of a name in `names()`."""
    return importlib.import_module(_packages()[name]).EXPERIMENT


def implementation(name):
    """Returns the job class of an experiment, or the function that runs a study."""
    declared = find(name)
    path = declared.job if isinstance(declared, Experiment) else declared.run
    return _imported(name, path)


def tables(directory):
    """Returns the further tables of the experiment of a `WorkDirectory`, or `None`."""
    name = directory.config.experiment
    path = find(name).tables
    return None if path is None else _imported(name, path)(directory)


def check_scored(name):
    """Raises `InputError` unless the runs of an experiment have tables of a score."""
    if name not in scored():
        raise InputError(
            f"This command is for the experiments {', '.join(scored())}. "
            f"Received: experiment={name}."
        )


def _imported(name, path):
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(f"{_packages()[name]}.{module}"), attribute)


def _packages():
    return {
        module.name: f"{group.__name__}.{module.name}"
        for group in (importlib.import_module(name, __package__) for name in _GROUPS)
        for module in pkgutil.iter_modules(group.__path__)
        if module.ispkg
    }
