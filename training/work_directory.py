"""The folder of one run: its config and everything the run writes."""

from pathlib import Path

from training import config as configs
from training.atomic_file import write_text
from training.errors import InputError

_CONFIG = "config.yaml"


class WorkDirectory:
    """A folder that belongs to one config and is never overwritten by another run.

    Use `WorkDirectory.start`, `resume` or `open`.

    Attributes:
        path: the folder.
        config: the resolved config that it was started with.
    """

    def __init__(self, path, config):
        self.path = Path(path)
        self.config = config

    @classmethod
    def start(cls, path, config):
        """Takes a new or empty folder and saves the resolved config in it.

        Raises:
            InputError: if there is anything in the folder.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise InputError(f"The work directory {path} is a file.")
        if path.is_dir() and any(path.iterdir()):
            raise InputError(
                f"The work directory {path} is not empty, and a run never overwrites "
                "another. Add --resume to continue the run in it, or choose another "
                "--work-dir."
            )
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / _CONFIG, configs.to_yaml(config))
        return cls(path, config)

    @classmethod
    def open(cls, path):
        """Opens the folder of an earlier run.

        Raises:
            InputError: if it is not the folder of a run.
        """
        file = Path(path) / _CONFIG
        if not file.is_file():
            raise InputError(
                f"{path} is not the work directory of a run: it holds no {_CONFIG}. "
                "`deq-keras train` makes one."
            )
        return cls(path, configs.load(file))

    @classmethod
    def resume(cls, path, config):
        """Opens the folder of an earlier run of the same config, to continue it.

        Raises:
            InputError: if there is no run to continue, or its config differs; the
                message names what differs.
        """
        directory = cls.open(path)
        changes = _differences(
            configs.to_mapping(directory.config), configs.to_mapping(config)
        )
        if changes:
            lines = "\n".join(f"  {change}" for change in changes)
            raise InputError(
                f"The run in {path} was started with another config, and a resumed run "
                f"must have the same one:\n{lines}\n"
                "Choose another --work-dir for the changed config."
            )
        return directory

    def run(self, name):
        """Returns the folder of one variant's run, and makes it if it is not there."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        return folder


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
