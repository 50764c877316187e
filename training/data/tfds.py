"""Prepare and read datasets of TensorFlow Datasets; all their errors name a remedy."""

import contextlib

from ..config.errors import closest
from ..errors import InputError
from ..files.input_file import check_file
from .records.shards import Shards


@contextlib.contextmanager
def preparing(name, remedy):
    """Turns an error of preparing a dataset into an `InputError`.

    Args:
        name: String. The dataset of TFDS.
        remedy: String. Sentences about what to do.
    """
    import tensorflow_datasets
    from google.protobuf import json_format

    try:
        yield
    except tensorflow_datasets.core.DatasetNotFoundError as error:
        # Its own message lists all datasets, on more than a thousand lines.
        names = tensorflow_datasets.list_builders(with_community_datasets=False)
        raise InputError(
            f"TensorFlow Datasets has no dataset {name}.{closest(name, names)} {remedy}"
        ) from error
    except (
        AssertionError,  # The files of a manual download are missing.
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
        json_format.Error,  # Its `dataset_info.json` is corrupt.
        tensorflow_datasets.download.DownloadError,
    ) as error:
        raise InputError(
            f"TensorFlow Datasets could not prepare {name}. {remedy} ({error})"
        ) from error


def find_shards(name, splits, how_to_get):
    """Returns a list of the `Shards` of splits of a dataset, prepared as TFRecords.

    The shards are read directly, not through `tfds.load`, whose order of files cannot
    depend on the epoch. A dataset that is not prepared yet is downloaded if possible.

    Args:
        name: String. The dataset of TFDS.
        splits: Names of its splits.
        how_to_get: String. The remedy if TFDS cannot download the dataset.

    Raises:
        InputError: If the dataset cannot be prepared, is stored in another format, or
            lacks a split or a file.
    """
    info = prepared_info(
        name,
        f"{how_to_get} Or give a folder of TFRecords as `data.directory`.",
    )
    missing = [split for split in splits if split not in info.splits]
    if missing:
        raise InputError(
            f"The dataset {name} must have the splits {' and '.join(splits)}. "
            f"Missing in {info.data_dir}: {' and '.join(missing)}. {how_to_get} Then "
            f"run `tfds build {name} --overwrite`."
        )
    return [split_shards(info, split, name) for split in splits]


def split_shards(info, split, name):
    """Returns the `Shards` of one split; see `find_shards`."""
    found = info.splits[split]
    for file in found.filepaths:
        check_file(file, f"file of the dataset {name},")
    return Shards(found.filepaths, found.shard_lengths)


def prepared_info(name, remedy, directory=None):
    """Returns the `DatasetInfo` of a dataset, which is prepared first if needed.

    Args:
        name: String. The dataset of TFDS.
        remedy: String. Sentences about what to do if it cannot be prepared.
        directory: Folder in which TFDS keeps its datasets. `None` takes the default.

    Raises:
        InputError: If the dataset cannot be prepared, or is stored in another format.
    """
    import tensorflow_datasets

    with preparing(name, remedy):
        folder = {} if directory is None else {"data_dir": directory}
        builder = tensorflow_datasets.builder(name, **folder)
        if not builder.is_prepared():
            builder.download_and_prepare(file_format="tfrecord")
    info = builder.info
    if info.file_format.value != "tfrecord":
        raise InputError(
            f"The dataset {name} must be stored as tfrecord. Prepare it again with "
            f"`tfds build {name} --file_format=tfrecord --overwrite`. "
            f"Received: {info.file_format.value} in {info.data_dir}."
        )
    return info
