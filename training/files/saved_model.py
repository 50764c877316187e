"""The `.keras` files that runs write and read."""

import importlib
import re
import zipfile

import keras

from ..errors import InputError, reading
from .atomic_file import replacing


def save(model, path):
    """Saves a `.keras` file atomically."""
    with replacing(path) as temporary:
        model.save(temporary)


def load(path, remedy):
    """Returns the model of a `.keras` file, not compiled.

    Args:
        path: `pathlib.Path` of the file.
        remedy: String. Sentence that says how to replace a corrupt file.

    Raises:
        InputError: if the file cannot be read, or has a class that is not known; it
            says what to do.
    """
    with reading(path, remedy):
        with zipfile.ZipFile(path) as archive:
            # Keras reads a damaged part as far as it goes.
            damaged = archive.testzip()
            if damaged is not None:
                raise zipfile.BadZipFile(
                    f"The checksum of its part {damaged} is wrong."
                )
            # They register their classes when they are first imported, in seconds.
            if b"deq_keras.models" in archive.read("config.json"):
                importlib.import_module("deq_keras.models")
        try:
            return keras.models.load_model(path, compile=False)
        except (TypeError, ValueError) as error:
            _refuse_foreign_code(path, error)
            raise


def _refuse_foreign_code(path, error):
    """Raises `InputError` if a file is whole, but needs code that Keras lacks."""
    unknown = re.search(r"Could not locate (\w+) '([^']*)'", str(error))
    if unknown is not None:
        kind, name = unknown.groups()
        raise InputError(
            f"{path} has the {kind} `{name}`, which is not registered in Keras. Import "
            "the module that defines it, decorated with "
            "`@keras.saving.register_keras_serializable()`, before the file is read: "
            "`deq-keras audit` does so with --import MODULE."
        ) from error
    if "safe_mode" in str(error):
        raise InputError(
            f"{path} has a function that is saved as code, as in a Lambda layer, which "
            "is not run. Save the model with a registered layer in its place."
        ) from error
