"""What goes wrong with datasets that TensorFlow Datasets prepares and reads."""

import contextlib

from ..errors import InputError


def classes():
    """Returns the classes of errors of preparing, for `except`. Imports TFDS."""
    import tensorflow_datasets as tfds
    from google.protobuf import json_format

    return (
        AssertionError,  # The files of a manual download are not there.
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
        json_format.Error,  # Its `dataset_info.json` is damaged.
        tfds.download.DownloadError,
    )


@contextlib.contextmanager
def reading(name):
    """Turns an error of reading the examples of a dataset into an `InputError`."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise InputError(
            f"TensorFlow Datasets could not read {name}: one of its files is damaged, "
            f"or gone. Prepare it anew with `tfds build {name} --overwrite`."
        ) from error
