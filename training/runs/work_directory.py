"""The folder of a run, with its config and all files that the run writes."""

import contextlib
import os
from pathlib import Path

import filelock

from ..config import reading as configs
from ..errors import InputError
from ..files import records
from ..files.atomic_file import is_partial, remove_partial, write_text

_CONFIG = "config.yaml"
_LOCK = ".lock"


class WorkDirectory:
    """A folder that belongs to one config and is never overwritten by another run.

    Create it with `WorkDirectory.start`, `resume` or `open`, which only read. Write to
    the folder only within `in_use`.

    Attributes:
        path: `pathlib.Path` of the folder.
        config: The resolved config of the run.
    """

    def __init__(self, path, config, is_new=False):
        self.path = Path(path)
        self.config = config
        self._is_new = self._writes_config = is_new

    @classmethod
    def start(cls, path, config):
        """Selects a new or empty folder. `in_use` creates it.

        Raises:
            InputError: If the folder is not empty.
        """
        path = Path(path)
        _check_place(path)
        if (path / _LOCK).exists():
            with _only_process(path):
                pass
        _check_empty(path)
        return cls(path, config, is_new=True)

    @classmethod
    def open(cls, path):
        """Opens the folder of an earlier run.

        Raises:
            InputError: If the folder does not belong to a run.
        """
        file = Path(path) / _CONFIG
        if not is_run(path):
            raise InputError(
                f"{path} is not the work directory of a run: it holds no {_CONFIG}. "
                "`deq-keras train` makes one."
            )
        try:
            return cls(path, configs.load(file))
        except InputError as error:
            raise InputError(
                f"{error}\nIt is the config of the run in {path}. Put back the one "
                "that it was started with, or start again in another work directory."
            ) from error

    @classmethod
    def resume(cls, path, config):
        """Opens the folder of an earlier run with the same config, to continue it.

        The config may have more `seeds`, which join the seeds of the run, and other
        `phases` after the epochs that the runs have trained. Phases in steps stay the
        same as soon as they may have begun.

        Raises:
            InputError: If the folder does not contain a run, or its config differs. The
                message lists the differences.
        """
        directory = cls.open(path)
        old, new = map(configs.to_mapping, (directory.config, config))
        has_more_seeds = old["seeds"] and set(old["seeds"]) < set(new["seeds"] or ())
        if has_more_seeds:
            old["seeds"] = new["seeds"]
        changes = _differences(old, new)
        has_others = _differences({**old, "phases": None}, {**new, "phases": None})
        if changes and (has_others or not directory._keeps_trained_epochs(config)):
            lines = "\n".join(f"  {change}" for change in changes)
            raise InputError(
                f"The run in {path} was started with another config. A resumed run may "
                "have more `seeds`, and other `phases` after the epochs that it has "
                f"trained:\n{lines}\n"
                "Choose another --work-dir for the changed config."
            )
        if changes or has_more_seeds:
            directory.config, directory._writes_config = config, True
        return directory

    def _keeps_trained_epochs(self, config):
        """Returns whether a config has the epochs that the runs have trained."""
        for name in configs.run_names(self.config):
            num_trained = records.num_epochs(self.folder(name))
            before, after = (
                _epochs(configs.run_config(one, name).phases, num_trained)
                for one in (self.config, config)
            )
            # Phases in steps may end before the list does; new phases can follow.
            if before != after[: len(before)]:
                return False
        return True

    @contextlib.contextmanager
    def in_use(self):
        """Locks the folder for this process, to write to it.

        Creates a new folder with the resolved config, adds new seeds to the config of
        an earlier run, and removes incomplete files of killed processes.

        Raises:
            InputError: If another process has locked the folder, or has started a run
                in a folder that was empty.
        """
        if self._is_new:
            self.path.mkdir(parents=True, exist_ok=True)
        with _only_process(self.path):
            if self._is_new:
                _check_empty(self.path)  # Was not locked when it was selected.
            if self._writes_config:
                write_text(self.path / _CONFIG, configs.to_yaml(self.config))
            self._is_new = self._writes_config = False
            remove_partial(self.path)
            yield

    def folder(self, name):
        """Returns the path of one run's folder, which may not exist."""
        return self.path / name

    def run(self, name):
        """Returns the folder of one run. Creates it if it does not exist."""
        folder = self.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _epochs(phases, count):
    """Returns the phase of each of the first epochs of a run.

    A phase in steps counts as one epoch, since the length of its epochs depends on the
    data. The result can therefore have more phases than were trained, never fewer.
    """
    epochs = []
    for phase in phases:
        # A ramp depends on the length of its phase.
        has_length = phase.regularizer_ramp or phase.steps
        one = phase if has_length else phase.model_copy(update={"epochs": 1})
        epochs += [one] * min(phase.epochs or 1, count - len(epochs))
    return epochs


def is_run(path):
    """Returns whether a folder is the work directory of a run."""
    return (Path(path) / _CONFIG).is_file()


def _check_place(path):
    """Raises `InputError` if the folder cannot be created later."""
    nearest = next(
        place for place in (path, *path.absolute().parents) if place.exists()
    )
    if not nearest.is_dir():
        raise InputError(
            f"The work directory {path} cannot be made: {nearest} is a file. Choose "
            "another --work-dir."
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(
            f"The work directory {path} cannot be made: {nearest} may not be written. "
            "Choose another --work-dir."
        )


def _check_empty(path):
    """Raises `InputError` unless a folder is empty, apart from incomplete files."""
    if not path.is_dir():
        return
    files = [file for file in path.iterdir() if file.name != _LOCK]
    if not all(map(is_partial, files)):
        raise InputError(
            f"The work directory {path} is not empty, and a run never overwrites "
            "another. Add --resume to continue the run in it, or choose another "
            "--work-dir."
        )


def _differences(old, new, path=""):
    """Lists the dotted paths at which two nests of mappings and lists differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        pairs = [(key, old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(index, *pair) for index, pair in enumerate(zip(old, new))]
    else:
        return [] if old == new else [f"{path}: was {old!r}, is now {new!r}"]
    changes = []
    for key, before, after in pairs:
        place = f"{path}.{key}" if path else str(key)
        changes += _differences(before, after, place)
    return changes


@contextlib.contextmanager
def _only_process(folder):
    """Locks a folder for this process, until the block or the process ends.

    The operating system releases the lock however the process ends; the remaining file
    blocks no other process.

    Args:
        folder: `pathlib.Path` of an existing folder.

    Raises:
        InputError: If another process has locked it.
    """
    lock = filelock.FileLock(folder / _LOCK)
    try:
        # Waits briefly: another process may be testing whether the folder is locked.
        lock.acquire(timeout=0.5)
    except filelock.Timeout as error:
        raise InputError(
            f"Another process is at work in {folder}, and a work directory takes one "
            "at a time. Wait until it has ended or stop it, or choose another work "
            "directory."
        ) from error
    try:
        yield
    finally:
        lock.release()
