"""The `.keras` files that runs write and read."""

import importlib
import zipfile

import keras

from ..errors import reading
from .atomic_file import replacing


def save(model, path):
    """Saves a `.keras` file atomically."""
    with replacing(path) as temporary:
        model.save(temporary)


def load(path, remedy):
    """Returns the model of a `.keras` file, not compiled.

    Args:
        path: `pathlib.Path` of the file.
        remedy: str. What to do if it is damaged, a sentence.

    Raises:
        InputError: if the file cannot be read; it says what to do.
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
        return keras.models.load_model(path, compile=False)
