"""Packages that the command line requires: of the extra `train`, and TensorFlow."""

import contextlib
import importlib

# Imported module -> package to install.
EXTRA = {
    "PIL": "pillow",
    "filelock": "filelock",
    "importlib_resources": "importlib_resources",
    "matplotlib": "matplotlib",
    "pydantic": "pydantic",
    "tensorboard": "tensorboard",
    "tensorflow_datasets": "tensorflow-datasets",
    "yaml": "pyyaml",
}


class MissingPackage(ImportError):
    """Raised if a package of the extra is missing, or Keras uses another backend."""


@contextlib.contextmanager
def explaining_missing():
    """Converts import errors of the extra's packages to `MissingPackage`."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA:
            _explain_backend()
            raise
        raise MissingPackage(
            f"The package `{EXTRA[module]}` is missing. Install what the command line "
            'needs beyond the library: pip install ".[train]" in a clone of deq_keras'
        ) from error


def _explain_backend():
    """Raises `MissingPackage` if the library refuses the backend of Keras."""
    try:
        # Keras fails before the library if its backend is not installed.
        importlib.import_module("deq_keras")
    except ImportError as error:
        if error.name == "KERAS_BACKEND":
            raise MissingPackage(str(error)) from error
