"""What TensorFlow Datasets raises for a dataset that it cannot prepare or read."""


def classes():
    """Returns the classes of these errors, for `except`. Imports TFDS."""
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
