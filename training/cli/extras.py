"""Packages of the extra `train`, which only the command line requires."""

import contextlib

# Imported module -> package to install.
EXTRA = {
    "PIL": "pillow",
    "filelock": "filelock",
    "importlib_resources": "importlib_resources",
    "matplotlib": "matplotlib",
    "tensorboard": "tensorboard",
    "tensorflow_datasets": "tensorflow-datasets",
    "yaml": "pyyaml",
}


class MissingPackage(ImportError):
    """Raised if a package of the extra is missing."""


@contextlib.contextmanager
def asked_for():
    """Converts import errors of the extra's packages to `MissingPackage`."""
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
