"""Finds the shards of streamed images, in a folder or as TFDS has prepared them."""

from training.data import record_counts, tfrecords
from training.data.record_reader import RecordFormat, RecordReader
from training.data.sharded_records import ShardedRecords
from training.data.streamed_split import StreamedSplit
from training.errors import InputError

_IN_FOLDER = RecordFormat("GZIP", image="image/encoded", label="label")
_OF_TFDS = RecordFormat("", image="image", label="label")


def from_folder(directory, name, split, num_classes, image_size):
    """Returns the `StreamedSplit` of `<name>-<split>-*.tfrecord.gz` in a folder.

    Raises:
        InputError: if the folder or the files are missing, or a file is truncated. What
            is wrong inside a record only shows when it is read.
    """
    files = tfrecords.matching(directory, f"{name}-{split}-*.tfrecord.gz")
    cache = files[0].with_name(f"{name}-{split}-record-counts.json")
    counts = record_counts.count(files, cache)
    reader = RecordReader(_IN_FOLDER, num_classes)
    return StreamedSplit(ShardedRecords.whole(reader, files, counts), image_size)


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
    info = prepared(name, how_to_get)
    missing = [split for split in splits if split not in info.splits]
    if missing:
        raise InputError(
            f"The dataset {name} must have the splits {' and '.join(splits)}. "
            f"Missing in {info.data_dir}: {' and '.join(missing)}. {how_to_get} Then "
            f"run `tfds build {name} --overwrite`."
        )
    reader = RecordReader(_OF_TFDS, num_classes)
    return tuple(
        StreamedSplit(
            ShardedRecords.whole(reader, split.filepaths, split.shard_lengths),
            image_size,
        )
        for split in map(info.splits.get, splits)
    )


def prepared(name, how_to_get):
    """Returns the `DatasetInfo` of a dataset of TFDS, prepared as TFRecords.

    Raises:
        InputError: if it cannot be prepared, or is stored in another format.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name)
        if not builder.is_prepared():
            builder.download_and_prepare(file_format="tfrecord")
    # An assertion of TFDS tells that the files of a manual download are not there.
    except (
        AssertionError,
        ImportError,
        OSError,
        tfds.download.DownloadError,
    ) as error:
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
