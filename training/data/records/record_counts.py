"""How many records the GZIP-compressed TFRecord shards of a folder hold."""

import contextlib
import functools
import gzip
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor

from ...errors import InputError
from ...files.atomic_file import write_text

_CHUNK = 1 << 20
_MAXIMUM = 1 << 40


def count(files, cache):
    """Returns the number of records of each shard.

    No header tells it, so a shard is decompressed once, to its checksum. The cache
    keeps the number as long as the shard's size and time of change stay the same; a
    `RecordReader` finds out where it is wrong. In a folder that cannot be written,
    every process counts anew.

    Args:
        files: list of `pathlib.Path`s of shards.
        cache: `pathlib.Path` of a JSON file.

    Raises:
        InputError: if a shard is truncated or damaged, or has no records.
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


def _state(file):
    status = file.stat()
    return f"{file.name} {status.st_size} {status.st_mtime_ns}"


def _read(cache):
    """Returns the counts of the cache that may be right: reading the shards tells."""
    try:
        known = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {state: count for state, count in known.items() if _is_count(count)}


def _is_count(value):
    return type(value) is int and 0 < value < _MAXIMUM


@functools.cache
def _count(file, state):
    del state  # Only distinguishes files of the same name.
    try:
        with gzip.open(file) as stream:
            number = 0
            while _skip_record(stream, file, number):
                number += 1
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{file} is truncated or damaged: {error}") from error
    if not number:
        raise InputError(f"{file} holds no records.")
    return number


def _skip_record(stream, file, number):
    """Reads length (8 bytes), its checksum (4), the data and their checksum (4)."""
    header = stream.read(12)
    if not header:
        return False
    missing = int.from_bytes(header[:8], "little") + 4
    while missing and (skipped := len(stream.read(min(missing, _CHUNK)))):
        missing -= skipped
    if missing or len(header) < 12:
        raise InputError(
            f"{file} is damaged, or no TFRecord file: it ends inside record {number}."
        )
    return True
