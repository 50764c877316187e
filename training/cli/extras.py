"""What the command line needs and the library alone does not: the extra `train`."""

import contextlib

# Imported module -> package to install.
EXTRA = {
    "filelock": "filelock",
    "importlib_resources": "importlib_resources",
    "matplotlib": "matplotlib",
    "tensorboard": "tensorboard",
    "tensorflow_datasets": "tensorflow-datasets",
    "yaml": "pyyaml",
}


class MissingPackage(ImportError):
    """A package of the extra is not installed. The message says what to do."""


@contextlib.contextmanager
def asked_for():
    """Raises `MissingPackage` with the command that installs it."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA:
            raise
        raise MissingPackage(
            f"The package `{EXTRA[module]}` is missing. Install what the command line "
            'needs beyond the library: pip install "deq-keras[train]"'
        ) from error
