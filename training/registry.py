"""Registry of experiments.

A module of `training.experiments` declares itself:

    EXPERIMENT = Experiment(CopyMemoryConfig, CopyMemoryJob, SCORE)

Its name is the `experiment` of its configs, and all modules are found automatically. A
large experiment is a folder. Its `__init__` names its parts as strings and does not
import TensorFlow, so that commands that only read files start at once:

    EXPERIMENT = Experiment(ClassificationConfig, "job:ClassificationJob", ACCURACY)
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import NamedTuple

from .errors import InputError


class Score(NamedTuple):
    """The score by which the variants of an experiment are compared.

    Logs and files hold fractions. Printed lines, tables and figures use the unit of the
    label, such as percent.

    Attributes:
        name: String. Key of the score in logs and rows.
        label: String. Name of the score. Ends with its unit in brackets, if it has one.
        scale: Float. Factor from the values in rows to the unit of the label.
        digits: String. Format of the score.
    """

    name: str
    label: str
    scale: float
    digits: str

    @property
    def unit(self):
        """Returns the unit of the label, such as `"%"`, or an empty string."""
        return self.label.partition("[")[2].removesuffix("]")

    @property
    def heading(self):
        """Returns the name with the unit, such as `"accuracy [%]"`."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def text(self, value):
        """Returns a value of logs or rows as text, in the unit of the label."""
        return f"{self.scale * value:{self.digits}}"


ACCURACY = Score("accuracy", "test accuracy [%]", 100, ".1f")


class Experiment(NamedTuple):
    """An experiment, which trains models in phases and compares them.

    Attributes:
        schema: Class of the configs, a `VariantsConfig`.
        job: The `Job` class of a variant, or a string `module:class` in the folder of
            the experiment, which is imported when a variant runs.
        score: `Score` of the tables.
        tables: Function that returns additional tables of a `WorkDirectory` as text, or
            `None`; or a string `module:function`. Defaults to `None`.
        generates: Boolean. Whether the models are language models, which generate text.
    """

    schema: type
    job: type | str
    score: Score
    tables: Callable | str | None = None
    generates: bool = False


def names():
    """Returns the names of all experiments."""
    return sorted(_packages())


def find(name):
    """Returns the `Experiment` of a name in `names()`."""
    return importlib.import_module(_packages()[name]).EXPERIMENT


def implementation(name):
    """Returns the job class of an experiment."""
    return _import(name, find(name).job)


def tables(directory):
    """Returns the additional tables of a `WorkDirectory`'s experiment, or `None`."""
    name = directory.config.experiment
    path = find(name).tables
    return None if path is None else _import(name, path)(directory)


def import_modules(names, place):
    """Imports modules of the user, which register classes in Keras.

    Args:
        names: List of strings. Modules in the current folder or installed ones.
        place: String. Where the names are given, for messages.

    Raises:
        InputError: If an import fails.
    """
    # An installed command does not search the current folder, unlike `python`.
    sys.path.append(os.getcwd())
    try:
        for name in names:
            importlib.import_module(name)
    except Exception as error:
        raise InputError(
            f"{place} {name} failed: {type(error).__name__}: {error}. Modules are "
            f"searched in {os.getcwd()} and among installed packages."
        ) from error
    finally:
        sys.path.remove(os.getcwd())


def check_generates(name):
    """Raises `InputError` unless the runs of an experiment are language models."""
    if not find(name).generates:
        languages = [other for other in names() if find(other).generates]
        raise InputError(
            f"`generate` is for runs of the experiments {', '.join(languages)}. "
            f"Received: experiment={name}."
        )


def _import(name, path):
    if not isinstance(path, str):
        return path
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(f"{_packages()[name]}.{module}"), attribute)


def _packages():
    # Imported by name, because experiments import this module.
    experiments = importlib.import_module(".experiments", __package__)
    return {
        module.name: f"{experiments.__name__}.{module.name}"
        for module in pkgutil.iter_modules(experiments.__path__)
    }
