"""Find the TFRecord shards of a dataset, and count their records."""

import contextlib
import functools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from ...errors import InputError
from ...files.atomic_file import write_text
from ...files.input_file import check_file, check_folder

# The origin of the number of records, and the remedy if it is wrong.
COUNTED_HERE = "in the file *-record-counts.json beside it: remove that"
COUNTED_BY_TFDS = "in its dataset_info.json: prepare the dataset again"
_MAXIMUM = 1 << 40


class Shards(NamedTuple):
    """The files of a split.

    Attributes:
        files: List of their paths, in the order of the records.
        counts: List of the numbers of their records.
    """

    files: list
    counts: list


def in_folder(directory, name):
    """Returns the `Shards` `<name>-*.tfrecord.gz` of a folder, sorted by name.

    Raises:
        InputError: If the folder or its files are missing, or if a file cannot be read
            or is truncated. Errors inside a record only show when it is read.
    """
    files = _matching(Path(directory), f"{name}-*.tfrecord.gz")
    cache = files[0].with_name(f"{name}-record-counts.json")
    return Shards(files, count_records(files, cache))


def count_records(files, cache):
    """Returns the number of records of each GZIP-compressed shard.

    Shards do not store the number, so each is read once. The cache keeps the number as
    long as the shard's size and modification time stay the same; a `RecordReader`
    detects a wrong number. In a read-only folder, every process counts.

    Args:
        files: List of `pathlib.Path`s of shards.
        cache: `pathlib.Path` of a JSON file.

    Raises:
        InputError: If a shard is truncated, corrupt or empty.
    """
    known = _read(cache)
    states = [_state(file) for file in files]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        counts = list(
            threads.map(
                lambda file, state: (
                    known[state] if state in known else _count(file, state)
                ),
                files,
                states,
            )
        )
    found = dict(zip(states, counts, strict=True))
    if found != known:
        with contextlib.suppress(OSError):
            write_text(cache, json.dumps(found, indent=1) + "\n")
    return counts


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


def _state(file):
    status = file.stat()
    return f"{file.name} {status.st_size} {status.st_mtime_ns}"


def _read(cache):
    """Returns the plausible counts of the cache; reading the shards verifies them."""
    try:
        known = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        state: count
        for state, count in known.items()
        if type(count) is int and 0 < count < _MAXIMUM
    }


@functools.cache
def _count(file, state):
    del state  # Only distinguishes files of the same name.
    records = tf.data.TFRecordDataset(str(file), "GZIP")
    try:
        zero = tf.constant(0, tf.int64)
        number = int(records.reduce(zero, lambda count, _: count + 1))
    except tf.errors.OpError as error:
        # TensorFlow prefixes the message with the name of the operation, {{...}}.
        reason = error.message.rpartition("}}")[2].partition("[Op:")[0].strip()
        raise InputError(
            f"{file} is truncated or damaged, or no TFRecord file: {reason}"
        ) from error
    if not number:
        raise InputError(f"{file} holds no records.")
    return number
