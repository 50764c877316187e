"""Prepare and read datasets of TensorFlow Datasets; all their errors name a remedy."""

import contextlib

import tensorflow as tf

from ..config.errors import closest
from ..errors import InputError
from ..files.input_file import check_file
from . import corruption
from .splits import Split

_FILES_AT_ONCE = 16


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


class TFDSSplit(Split):
    """Labeled images of a dataset that TFDS has prepared. Entries are its records.

    The files are read directly, not through `tfds.load`, whose order of files cannot
    depend on the epoch.

    Args:
        parse: Function from a record, a string tensor, to an example.
        ranges: List of `(file, start, stop)`: records of files, in their order.
        transform: See `Split`.
        shuffle_buffer: Positive integer. Records from which the next one is drawn.
    """

    def __init__(self, parse, ranges, transform, shuffle_buffer):
        super().__init__(transform)
        self.parse = parse
        self.ranges = ranges
        self.shuffle_buffer = shuffle_buffer

    def __len__(self):
        return sum(stop - start for _, start, stop in self.ranges)

    def part(self, start, stop):
        start, stop, _ = slice(start, stop).indices(len(self))
        parts, first = [], 0
        for file, begin, end in self.ranges:
            # Index in the file minus index in this split.
            offset = begin - first
            first += end - begin
            begin, end = max(begin, start + offset), min(end, stop + offset)
            if begin < end:
                parts.append((file, begin, end))
        return TFDSSplit(self.parse, parts, self.transform, self.shuffle_buffer)

    def in_order(self):
        ranges = tf.data.Dataset.from_tensor_slices(self._range_tensors())
        return ranges.flat_map(_records)

    def shuffle(self, key):
        # Sets the seed of this epoch's graph; `shuffle` would use the process' seed.
        tf.random.set_seed(1)
        files_key, records_key = tf.unstack(tf.random.split(key))
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(self.ranges)), files_key
        )
        ranges = tf.data.Dataset.from_tensor_slices(
            tuple(tf.gather(part, order) for part in self._range_tensors())
        )
        records = ranges.interleave(
            _records,
            cycle_length=min(_FILES_AT_ONCE, len(self.ranges)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        seed = tf.random.stateless_uniform([], records_key, None, None, tf.int64)
        return records.shuffle(min(self.shuffle_buffer, len(self)), seed)

    def loader(self):
        corruption.add_finder(self._first_corrupt)
        return self.parse

    def _first_corrupt(self):
        """Returns a sentence about the first unusable record, or `None`."""
        for file, start, stop in self.ranges:
            check_file(file, "data file")
            records, index = iter(_records(file, start, stop)), start
            try:
                while (entry := next(records, None)) is not None:
                    self.transform.prepare(*self.parse(*entry))
                    index += 1
            except tf.errors.OpError:
                return (
                    f"The file {file} is corrupt at record {index}. Prepare the "
                    "dataset again with `tfds build NAME --overwrite`."
                )
        return None

    def _range_tensors(self):
        files, *bounds = zip(*self.ranges, strict=True)
        return tf.constant(files), *(tf.constant(one, tf.int64) for one in bounds)


def _records(file, start, stop):
    records = tf.data.TFRecordDataset(file).skip(start).take(stop - start)
    return records.map(lambda record: (record,))


def find_splits(name, splits, decode, transform, shuffle_buffer, **source):
    """Returns a list of the `TFDSSplit`s of some splits of a dataset.

    Args:
        name: String. The dataset of TFDS.
        splits: Names of its splits.
        decode: Function from the features of an example, a dict in which images are
            the bytes of their files, to an example.
        transform: See `Split`.
        shuffle_buffer: See `TFDSSplit`.
        source: Arguments of `prepare_info`: `remedy` and `directory`.

    Raises:
        InputError: If the dataset cannot be prepared, is stored in another format, or
            lacks a split or a file.
    """
    info = prepare_info(name, **source)
    missing = [split for split in splits if split not in info.splits]
    if missing:
        raise InputError(
            f"The dataset {name} must have the splits {' and '.join(splits)}. "
            f"Missing in {info.data_dir}: {' and '.join(missing)}. "
            f"{source['remedy']} Then run `tfds build {name} --overwrite`."
        )
    return [
        split_of(info, split, name, decode, transform, shuffle_buffer)
        for split in splits
    ]


def split_of(info, split, name, decode, transform, shuffle_buffer):
    """Returns one `TFDSSplit` of a `DatasetInfo`; see `find_splits`."""
    import tensorflow_datasets

    found = info.splits[split]
    for file in found.filepaths:
        check_file(file, f"file of the dataset {name},")
    decoders = {
        key: tensorflow_datasets.decode.SkipDecoding()
        for key, feature in info.features.items()
        if isinstance(feature, tensorflow_datasets.features.Image)
    }

    def parse(record):
        features = info.features.deserialize_example(record, decoders=decoders)
        return decode(features)

    ranges = [
        (str(file), 0, count)
        for file, count in zip(found.filepaths, found.shard_lengths, strict=True)
    ]
    return TFDSSplit(parse, ranges, transform, shuffle_buffer)


def prepare_info(name, remedy, directory=None):
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
