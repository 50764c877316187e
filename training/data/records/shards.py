"""Finds the shards of a dataset, in a folder or as TFDS has prepared them."""

from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...files.input_file import check_file, check_folder
from .. import tfds_errors
from . import record_counts

# Where the number of records is from, and what to do where it is wrong.
COUNTED_HERE = "in the file *-record-counts.json beside it: remove that"
COUNTED_BY_TFDS = "in its dataset_info.json: prepare the dataset anew"


class Shards(NamedTuple):
    """The files of a split.

    Attributes:
        files: list of their paths, in the order of the records.
        counts: list of the numbers of their records.
    """

    files: list
    counts: list


def in_folder(directory, name):
    """Returns the `Shards` `<name>-*.tfrecord.gz` of a folder, in order of names.

    Raises:
        InputError: if there is no such folder or no such file, or one of them cannot be
            read or is truncated. What is wrong inside a record only shows when it is
            read.
    """
    files = _matching(Path(directory), f"{name}-*.tfrecord.gz")
    cache = files[0].with_name(f"{name}-record-counts.json")
    return Shards(files, record_counts.count(files, cache))


def of_tfds(name, splits, how_to_get):
    """Returns the `Shards` of splits of a dataset of TFDS, prepared as TFRecords.

    The shards are read as they are, not through `tfds.load`, whose order of files
    cannot be a function of the epoch. What is not there is downloaded if it can be.

    Args:
        name: str. The dataset of TFDS.
        splits: names of its splits.
        how_to_get: str. What to do where TFDS cannot download the dataset.

    Returns:
        A list of `Shards`.

    Raises:
        InputError: if the dataset cannot be prepared, is stored in another format, or
            lacks a split or a file.
    """
    info = _info(name, how_to_get)
    missing = [split for split in splits if split not in info.splits]
    if missing:
        raise InputError(
            f"The dataset {name} must have the splits {' and '.join(splits)}. "
            f"Missing in {info.data_dir}: {' and '.join(missing)}. {how_to_get} Then "
            f"run `tfds build {name} --overwrite`."
        )
    found = [info.splits[split] for split in splits]
    for split in found:
        _check_split(split, name, info.data_dir)
    return [Shards(split.filepaths, split.shard_lengths) for split in found]


def _matching(directory, pattern):
    check_folder(directory, "data directory")
    files = sorted(directory.glob(pattern))
    if not files:
        present = sorted(file.name for file in directory.iterdir())
        content = f"It holds: {', '.join(present[:8])}." if present else "It is empty."
        raise InputError(
            f"The data directory {directory} has no file named {pattern}. {content}"
        )
    for file in files:
        check_file(file, "data file")
    return files


def _check_split(split, name, folder):
    if min(split.shard_lengths, default=0) < 0:
        raise InputError(
            f"{folder}/dataset_info.json is damaged: numbers of records are at least "
            f"0. Received: shardLengths={split.shard_lengths}. Run `tfds build "
            f"{name} --overwrite`."
        )
    for file in split.filepaths:
        check_file(file, f"file of the dataset {name},")


def _info(name, how_to_get):
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name)
        if not builder.is_prepared():
            builder.download_and_prepare(file_format="tfrecord")
    except tfds_errors.classes() as error:
        raise InputError(
            f"TensorFlow Datasets could not prepare {name}. {how_to_get} Or give a "
            f"folder of TFRecords as `data.directory`. ({error})"
        ) from error
    info = builder.info
    if info.file_format.value != "tfrecord":
        raise InputError(
            f"The dataset {name} must be stored as tfrecord. Prepare it again with "
            f"`tfds build {name} --file_format=tfrecord --overwrite`. "
            f"Received: {info.file_format.value} in {info.data_dir}."
        )
    return info
