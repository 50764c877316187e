"""What is found damaged while data are streamed, as an error of the input."""

import contextlib
import re

import tensorflow as tf

from training.errors import InputError

# What the assertions of streamed data end with, before the file and the record.
PLACE = "File and record:"


@contextlib.contextmanager
def reported():
    """Turns a failed assertion about a record into an `InputError` that names it."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(rf"assertion failed: (.*{PLACE}.*)", error.message)
        if found is None:
            raise
        words = re.sub(r"[\[\]]", "", found[1]).split(" [Op:")[0]
        raise InputError(f"The data are damaged. {words}") from error
