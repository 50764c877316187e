"""The tasks of the study, in files by the shape of their inputs."""

from ..schema import TASKS as _NAMES
from . import grids, sequences, vectors

_TASKS = {**grids.TASKS, **sequences.TASKS, **vectors.TASKS}
TASKS = {name: _TASKS[name] for name in _NAMES}
