"""Finds the shards of streamed images, in a folder or as TFDS has prepared them."""

from ...errors import InputError
from ...files.input_file import check_file
from .. import tfds_errors
from ..records import record_counts
from ..records.shard_reader import ShardFormat
from ..records.sharded_records import ShardedRecords
from . import tfrecords
from .record_reader import RecordReader
from .streamed_split import StreamedSplit

# Where the number of records is from, and what to do where it is wrong.
COUNTED_HERE = "in the file *-record-counts.json beside it: remove that"
COUNTED_BY_TFDS = "in its dataset_info.json: prepare the dataset anew"

_IN_FOLDER = ShardFormat("GZIP", ("image/encoded", "label"), COUNTED_HERE)
_OF_TFDS = ShardFormat("", ("image", "label"), COUNTED_BY_TFDS)


def from_folder(directory, name, split, num_classes, image_size):
    """Returns the `StreamedSplit` of `<name>-<split>-*.tfrecord.gz` in a folder.

    Raises:
        InputError: if the folder or the files are missing, or a file is truncated. What
            is wrong inside a record only shows when it is read.
    """
    files, counts = counted(directory, f"{name}-{split}")
    reader = RecordReader(_IN_FOLDER, num_classes)
    return StreamedSplit(ShardedRecords.whole(reader, files, counts), image_size)


def counted(directory, name):
    """Returns the paths of `<name>-*.tfrecord.gz`, and how many records each holds.

    Raises:
        InputError: if the folder or the files are missing, or a file is truncated.
    """
    files = tfrecords.matching(directory, f"{name}-*.tfrecord.gz")
    cache = files[0].with_name(f"{name}-record-counts.json")
    return files, record_counts.count(files, cache)


def from_tfds(name, splits, num_classes, image_size, how_to_get):
    """Returns a `StreamedSplit` for each of some splits of a dataset of TFDS.

    The shards are read as they are, not through `tfds.load`, whose order of files
    cannot be a function of the epoch. What is not there is downloaded if it can be.

    Args:
        name: str. The dataset of TFDS.
        splits: names of its splits.
        num_classes: int.
        image_size: int.
        how_to_get: str. What to do where TFDS cannot download the dataset.

    Raises:
        InputError: if the dataset cannot be prepared, or lacks a split.
    """
    reader = RecordReader(_OF_TFDS, num_classes)
    return tuple(
        StreamedSplit(
            ShardedRecords.whole(reader, split.filepaths, split.shard_lengths),
            image_size,
        )
        for split in prepared(name, splits, how_to_get)
    )


def prepared(name, splits, how_to_get):
    """Returns the `SplitInfo`s of a dataset of TFDS, prepared as TFRecords.

    Args:
        name: str. The dataset of TFDS.
        splits: names of its splits.
        how_to_get: str. What to do where TFDS cannot download the dataset.

    Raises:
        InputError: if it cannot be prepared, is stored in another format, or lacks a
            split or a file.
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
    return found


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
