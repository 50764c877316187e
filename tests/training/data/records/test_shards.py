import json

import pytest

from training.data.records import shards
from training.errors import InputError


@pytest.fixture
def files(folder):
    return sorted(folder.glob("imagenette-train-*.tfrecord.gz"))


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "counts.json"


def test_unchanged_files_are_counted_once(files, cache):
    assert shards.count_records(files, cache) == [5, 5]
    known = json.loads(cache.read_text())
    assert list(known.values()) == [5, 5]
    first, second = known
    cache.write_text(json.dumps({first: 7, second: 8}))
    assert shards.count_records(files, cache) == [7, 8]


def test_changed_files_are_counted_again(files, cache, write_records):
    shards.count_records(files, cache)
    write_records(files[0], [b"a", b"b"])
    assert shards.count_records(files, cache) == [2, 5]
    assert sorted(json.loads(cache.read_text()).values()) == [2, 5]


@pytest.mark.parametrize("content", ["", "[1]"])
def test_corrupt_cache_is_replaced(files, cache, content):
    cache.write_text(content)
    assert shards.count_records(files, cache) == [5, 5]
    assert len(json.loads(cache.read_text())) == 2


def test_read_only_folder(files, tmp_path):
    assert shards.count_records(files, tmp_path / "nowhere" / "counts.json") == [5, 5]


@pytest.mark.parametrize("kept", [20, 0.5, 0.9])
def test_truncated_file_raises(files, cache, kept):
    content = files[1].read_bytes()
    files[1].write_bytes(content[: int(kept * len(content)) if kept < 1 else kept])
    with pytest.raises(InputError, match="00001.tfrecord.gz"):
        shards.count_records(files, cache)
    assert not cache.exists()


def test_changed_byte_raises(files, cache):
    content = bytearray(files[1].read_bytes())
    content[len(content) // 2] ^= 1
    files[1].write_bytes(content)
    with pytest.raises(InputError, match="00001.tfrecord.gz"):
        shards.count_records(files, cache)
