"""Which variants of a run a command is about."""

from .. import registry
from ..config import reading as configs
from ..errors import InputError
from ..runs.work_directory import WorkDirectory


def selected(path, name=None):
    """Returns the `WorkDirectory` at a path, and the names of its variants.

    Args:
        path: the folder of a run.
        name: str. The only variant. Defaults to `None`: all of them.

    Raises:
        InputError: If it is not a run of an experiment, or lacks the variant.
    """
    directory = WorkDirectory.open(path)
    registry.check_scored(directory.config.experiment)
    if name is not None:
        configs.variant(directory.config, name)
    return directory, [name] if name else list(directory.config.variants)


def only(names):
    """Returns the only name, or raises `InputError`."""
    if len(names) > 1:
        raise InputError(f"Choose one --variant of {', '.join(names)}.")
    return names[0]
