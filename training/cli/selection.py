"""Selection of the runs for a command."""

from ..config import reading as configs
from ..errors import InputError
from ..runs.work_directory import WorkDirectory


def select(path, name=None):
    """Returns the `WorkDirectory` at a path and the names of its selected runs.

    Args:
        path: Path of a work directory.
        name: String. Name of a variant or a run. Defaults to `None`, all runs.

    Raises:
        InputError: If the folder does not belong to a run, or the variant does not
            exist.
    """
    directory = WorkDirectory.open(path)
    return directory, runs_of(directory.config, name)


def runs_of(config, name=None):
    """Returns the names of the runs of a config; see `select`."""
    names = configs.run_names(config)
    if name is None:
        return names
    if name in configs.variant_names(config):
        return [run for run in names if configs.variant_of(run) == name]
    configs.run_config(config, name)
    return [name]


def only(names):
    """Returns the only name, or raises `InputError`."""
    if len(names) > 1:
        raise InputError(f"Choose one --variant of {', '.join(names)}.")
    return names[0]
