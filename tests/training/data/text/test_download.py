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
def test_takes_the_files_out_of_the_archive(tmp_path, folder, pack):
    url = pack(tmp_path / "archive", {**CONTENTS, "simple-examples/README": b"r"})
    target = text.fetch("ptb", folder, url)
    assert target == folder / "ptb"
    assert [file.name for file in folder.iterdir()] == ["ptb"]
    expected = tuple(content.decode() for content in CONTENTS.values())
    assert text.from_directory(target) == expected


def test_does_not_overwrite(tmp_path, folder):
    (folder / "ptb").mkdir(parents=True)
    with pytest.raises(InputError, match="ptb exists already"):
        text.fetch("ptb", folder, tgz(tmp_path / "archive", CONTENTS))
    assert not list((folder / "ptb").iterdir())


def check_refused(folder, url, words):
    with pytest.raises(InputError, match=words):
        text.fetch("ptb", folder, url)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("url", ["file:///nowhere/archive.tgz", "no address"])
def test_what_cannot_be_downloaded(folder, url):
    words = f"Could not download .*{url}.*Check the connection.*into .*ptb by other"
    check_refused(folder, url, words)


def test_archive_without_a_split(tmp_path, folder):
    url = tgz(tmp_path / "archive", dict(list(CONTENTS.items())[:2]))
    check_refused(folder, url, "has ptb.train.txt, ptb.valid.txt, but lacks ptb.test")


def test_archive_of_something_else(tmp_path, folder):
    url = tgz(tmp_path / "archive", {"other/train.txt": b"words"})
    check_refused(folder, url, f"{FOLDER} does not exist")


def test_no_archive(tmp_path, folder):
    (tmp_path / "page.html").write_text("<html>")
    url = (tmp_path / "page.html").as_uri()
    check_refused(folder, url, f"Could not download and unpack {url}")


@pytest.mark.parametrize("pack", [tgz, zipped])
def test_truncated_archive(tmp_path, folder, pack):
    url = pack(tmp_path / "archive", CONTENTS)
    file = tmp_path / "archive"
    file.write_bytes(file.read_bytes()[:-60])
    check_refused(folder, url, f"Could not download and unpack {url}")


def test_archive_of_no_text(tmp_path, folder):
    url = tgz(tmp_path / "archive", dict.fromkeys(CONTENTS, b"\0words"))
    check_refused(folder, url, "Expected UTF-8 text in .*ptb.train.txt")


@pytest.mark.parametrize("name", ["ptbb", 3])
def test_unknown_corpus(folder, name):
    with pytest.raises(InputError, match="must be one of .*name="):
        text.fetch(name, folder)
