"""Reading and writing of `.keras` files, and errors of files that TensorFlow writes."""

import contextlib
import importlib
import os
import re
import zipfile

import keras
import tensorflow as tf

from ..errors import REMEDIES, InputError, reading
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
        InputError: If the file cannot be read or contains an unknown class. The message
            says how to fix it.
    """
    with reading(path, remedy):
        with zipfile.ZipFile(path) as archive:
            # Keras would read a corrupt entry up to the error.
            damaged = archive.testzip()
            if damaged is not None:
                raise zipfile.BadZipFile(
                    f"The checksum of its part {damaged} is wrong."
                )
            # Imports the models only if necessary, since it takes seconds.
            if b"deq_keras.models" in archive.read("config.json"):
                importlib.import_module("deq_keras.models")
                # Registers `WordTokenizer`, which a language model may contain.
                importlib.import_module("...data.text.word_tokenizer", __name__)
        try:
            return keras.models.load_model(path, compile=False)
        except (TypeError, ValueError) as error:
            _refuse_foreign_code(path, error)
            raise


@contextlib.contextmanager
def writing(path):
    """Converts TensorFlow's errors about files below a path to Python's `OSError`.

    Args:
        path: `pathlib.Path` to write to.

    Raises:
        OSError: If writing fails. The error names `path`.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if str(path) not in error.message:
            raise
        # TensorFlow copies the text of these errors from the operating system.
        for code in REMEDIES:
            if os.strerror(code).lower() in error.message.lower():
                raise OSError(code, os.strerror(code), str(path)) from error
        reason = " ".join(re.sub(r"\{\{.*?\}\}", "", error.message).split())
        raise OSError(None, f"cannot be written ({reason})", str(path)) from error


def _refuse_foreign_code(path, error):
    """Raises `InputError` if an intact file needs code that Keras does not have."""
    unknown = re.search(r"Could not locate (\w+) '([^']*)'", str(error))
    if unknown is not None:
        kind, name = unknown.groups()
        raise InputError(
            f"{path} has the {kind} `{name}`, which is not registered in Keras. Import "
            "the module that defines it, decorated with "
            "`@keras.saving.register_keras_serializable()`, before the file is read: "
            "name it in the `imports` of the config."
        ) from error
    if "safe_mode" in str(error):
        raise InputError(
            f"{path} has a function that is saved as code, as in a Lambda layer, which "
            "is not run. Save the model with a registered layer in its place."
        ) from error
