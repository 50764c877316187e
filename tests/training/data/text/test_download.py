import io
import tarfile
import zipfile

import pytest

from training.data import text
from training.errors import InputError

FOLDER = "simple-examples/data"
CONTENTS = {
    f"{FOLDER}/ptb.{split}.txt": f"{split} words\n".encode()
    for split in ("train", "valid", "test")
}


def tgz(path, contents):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path.as_uri()


def zipped(path, contents):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path.as_uri()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "new" / "data"


@pytest.mark.parametrize("pack", [tgz, zipped])
def test_archive_is_unpacked(tmp_path, folder, pack):
    url = pack(tmp_path / "archive", {**CONTENTS, "simple-examples/README": b"r"})
    target = text.fetch("ptb", folder, url)
    assert target == folder / "ptb"
    assert [file.name for file in folder.iterdir()] == ["ptb"]
    expected = tuple(content.decode() for content in CONTENTS.values())
    assert text.from_directory(target) == expected


def test_existing_folder_raises(tmp_path, folder):
    (folder / "ptb").mkdir(parents=True)
    with pytest.raises(InputError, match="ptb exists already"):
        text.fetch("ptb", folder, tgz(tmp_path / "archive", CONTENTS))
    assert not list((folder / "ptb").iterdir())


def check_refused(folder, url, words):
    with pytest.raises(InputError, match=words):
        text.fetch("ptb", folder, url)
    assert not list(folder.iterdir())


def test_bad_archive_raises(tmp_path, folder):
    incomplete = dict(list(CONTENTS.items())[:2])
    other = {"other/train.txt": b"words"}
    for url, words in [
        ("file:///nowhere/archive.tgz", "Could not download"),
        (tgz(tmp_path / "incomplete", incomplete), "lacks ptb.test"),
        (tgz(tmp_path / "other", other), f"{FOLDER} does not exist"),
    ]:
        check_refused(folder, url, words)


@pytest.mark.parametrize("pack", [tgz, zipped])
def test_truncated_archive_raises(tmp_path, folder, pack):
    url = pack(tmp_path / "archive", CONTENTS)
    file = tmp_path / "archive"
    file.write_bytes(file.read_bytes()[:-60])
    check_refused(folder, url, f"Could not download and unpack {url}")
