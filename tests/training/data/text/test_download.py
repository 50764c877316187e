import io
import tarfile
import zipfile

import numpy as np
import pytest

from training.data import text
from training.data.text import download
from training.errors import InputError

FOLDER = "simple-examples/data"
SPLITS = ("train", "valid", "test")
# Random letters: compression leaves enough bytes to cut.
LETTERS = np.random.default_rng(0).integers(97, 123, 2000).astype("uint8").tobytes()
CONTENTS = {
    f"{FOLDER}/ptb.{split}.txt": f"{split} ".encode() + LETTERS for split in SPLITS
}


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    """Penn Treebank of 1000 bytes a file, and no network."""
    sizes = {f"ptb.{split}.txt": 1000 for split in SPLITS}
    source = download.Source("file:///nowhere/archive.tgz", FOLDER, sizes)
    monkeypatch.setitem(download.SOURCES, "ptb", source)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


def add(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def tgz(path, contents, prefix="./"):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            add(archive, prefix + name, content)
    return path.as_uri()


def zipped(path, contents):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path.as_uri()


@pytest.mark.parametrize("pack", [tgz, zipped])
def test_takes_the_files_out_of_the_archive(tmp_path, folder, pack):
    extra = {f"{FOLDER}/ptb.char.train.txt": b"c", "simple-examples/README": b"r"}
    url = pack(tmp_path / "archive", {**extra, **CONTENTS})
    target = text.fetch("ptb", folder, url)
    assert target == folder / "ptb"
    assert {file.name for file in target.iterdir()} == {
        f"ptb.{split}.txt" for split in SPLITS
    }
    assert [file.name for file in folder.iterdir()] == ["ptb"]
    assert text.from_directory(target) == tuple(
        content.decode() for content in CONTENTS.values()
    )


def test_does_not_overwrite(tmp_path, folder):
    (folder / "ptb").mkdir(parents=True)
    with pytest.raises(InputError, match="ptb exists already"):
        text.fetch("ptb", folder, tgz(tmp_path / "archive", CONTENTS))
    assert not list((folder / "ptb").iterdir())


def check_refused(folder, url, words):
    with pytest.raises(InputError, match=words):
        text.fetch("ptb", folder, url)
    assert not list(folder.iterdir())


def test_without_a_network(folder):
    check_refused(folder, None, "nowhere.*put ptb.train.txt, .* into .*ptb by other")
    check_refused(folder, "no address", "Could not download no address")


def test_archive_without_a_split(tmp_path, folder):
    contents = dict(list(CONTENTS.items())[:2])
    for pack in (tgz, zipped):
        check_refused(
            folder, pack(tmp_path / "archive", contents), "lacks.*ptb.test.txt"
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "at least 1000 bytes in ptb.valid.txt of the archive. Received: 0"),
        (b"word " * 100, "Received: 500"),
        (b"\n" * 1000, "none of them more than white space"),
        (b"\xff" * 1000, "byte 0xff at position 0"),
    ],
)
def test_file_that_is_no_corpus(tmp_path, folder, content, words):
    contents = {**CONTENTS, f"{FOLDER}/ptb.valid.txt": content}
    check_refused(folder, tgz(tmp_path / "archive", contents), words)


def test_page_instead_of_an_archive(tmp_path, folder):
    (tmp_path / "archive").write_bytes(b"<html>Moved</html>")
    url = (tmp_path / "archive").as_uri()
    check_refused(folder, url, "zip or tar archive. Received: .*<html>Moved")


@pytest.mark.parametrize("pack", [tgz, zipped])
@pytest.mark.parametrize("kept", [0, 0.3, 0.6, 0.95])
def test_archive_that_is_cut(tmp_path, folder, pack, kept):
    url = pack(tmp_path / "archive", CONTENTS)
    content = (tmp_path / "archive").read_bytes()
    (tmp_path / "archive").write_bytes(content[: int(kept * len(content))])
    check_refused(folder, url, "damaged|zip or tar|lacks")


def test_damaged_archive(tmp_path, folder):
    url = zipped(tmp_path / "archive", CONTENTS)
    content = bytearray((tmp_path / "archive").read_bytes())
    content[500:520] = bytes(20)
    (tmp_path / "archive").write_bytes(content)
    check_refused(folder, url, "archive is damaged")


def test_download_that_breaks_off(tmp_path, folder, monkeypatch):
    url = tgz(tmp_path / "archive", CONTENTS)
    opened = download.urllib.request.urlopen

    def cut(*args, **kwargs):
        response = opened(*args, **kwargs)
        del response.headers["Content-Length"]
        response.headers["Content-Length"] = "1000000"
        return response

    monkeypatch.setattr(download.urllib.request, "urlopen", cut)
    check_refused(folder, url, "broke off after .* of 1000000 bytes")


@pytest.mark.parametrize("pack", [tgz, zipped])
def test_paths_that_lead_out_of_the_folder(tmp_path, folder, pack):
    outside = {"../evil.txt": b"evil", str(tmp_path / "evil.txt"): b"evil"}
    url = pack(tmp_path / "archive", {**outside, **CONTENTS})
    text.fetch("ptb", folder, url)
    assert not list(tmp_path.rglob("evil.txt"))


def test_link_instead_of_a_file(tmp_path, folder):
    (tmp_path / "secret.txt").write_bytes(LETTERS)
    with tarfile.open(tmp_path / "archive", "w:gz") as archive:
        link = tarfile.TarInfo(f"{FOLDER}/ptb.train.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.txt")
        archive.addfile(link)
        for name, content in list(CONTENTS.items())[1:]:
            add(archive, name, content)
    url = (tmp_path / "archive").as_uri()
    check_refused(folder, url, "no regular file .*ptb.train.txt")


def test_unknown_corpus(folder):
    with pytest.raises(InputError, match="name='wikitext'.* Did you mean `wikitext-"):
        text.fetch("wikitext", folder)


def test_every_source_gives_a_layout_that_is_read(tmp_path):
    for name, source in download.SOURCES.items():
        target = tmp_path / name
        target.mkdir()
        for file in source.minimum_bytes:
            (target / file).write_text(file)
        assert text.from_directory(target) == tuple(source.minimum_bytes)


def test_folder_that_cannot_be_written(tmp_path, folder):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="Cannot write .*file/ptb"):
        text.fetch("ptb", tmp_path / "file", url=tgz(tmp_path / "a.tgz", {}))
    with pytest.raises(InputError, match="File name too long"):
        text.fetch("ptb", tmp_path / ("x" * 300), url="file:///nowhere")


def test_damaged_archive_of_xz(tmp_path, folder):
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for name in CONTENTS:
            add(archive, name, np.random.default_rng(0).bytes(10**6))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    check_refused(folder, path.as_uri(), "archive is damaged: Corrupt input data")
