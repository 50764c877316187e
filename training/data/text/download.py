"""Corpora from where their authors keep them."""

import gzip
import http.client
import lzma
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from ...config.validation import closest
from ...errors import InputError
from .text_file import read_text


class Source(NamedTuple):
    """Where a corpus is, and what it must look like.

    Attributes:
        url: of a zip or tar archive.
        folder: of the files in the archive.
        minimum_bytes: file name -> a size, well below that of the file, that tells it
            from a part of it or from another file.
    """

    url: str
    folder: str
    minimum_bytes: dict


def _wikitext(name, train_bytes):
    # The archives of the author. The bucket of the paper, research.metamind.io, is
    # closed since 2024.
    return Source(
        f"https://wikitext.smerity.com/{name}-v1.zip",
        name,
        {
            "wiki.train.tokens": train_bytes,
            "wiki.valid.tokens": 1_000_000,
            "wiki.test.tokens": 1_000_000,
        },
    )


SOURCES = {
    "wikitext-103": _wikitext("wikitext-103", 400_000_000),
    "wikitext-2": _wikitext("wikitext-2", 8_000_000),
    "ptb": Source(
        "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        "simple-examples/data",
        {
            "ptb.train.txt": 4_000_000,
            "ptb.valid.txt": 300_000,
            "ptb.test.txt": 300_000,
        },
    ),
}

# Some hosts refuse the name that urllib gives itself.
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; deq-keras)"}
_TIMEOUT_SECONDS = 60
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    # Of an encrypted archive, and of a compression that Python lacks.
    RuntimeError,
)


def fetch(name, directory, url=None):
    """Downloads a corpus into the new folder `directory / name`.

    Only the three files of the corpus are taken out of the archive. They are checked
    to be text of a plausible size, not against checksums. The folder appears when it
    is complete, or not at all.

    Args:
        name: `"wikitext-103"`, `"wikitext-2"` or `"ptb"`.
        directory: folder that takes the new one; made if needed.
        url: optional str. Another place of the same archive, also `file://...`.

    Returns:
        The path of the new folder, for `from_directory`.

    Raises:
        InputError: if the folder exists already or cannot be written, there is no
            connection, or the archive does not hold the corpus.
    """
    source = _source(name)
    target = Path(directory) / name
    if os.path.lexists(target):
        raise InputError(
            f"{target} exists already and is not overwritten. Read it, or remove it "
            "to download it again."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".download-", dir=target.parent
        ) as work:
            archive, complete = Path(work) / "archive", Path(work) / name
            _download(url or source.url, archive, source, target)
            complete.mkdir()
            _extract(archive, source, complete)
            _check_sizes(source, complete)
            os.replace(complete, target)
    except OSError as error:
        raise InputError(
            f"Cannot write {target}: {error.strerror or error}."
        ) from error
    return target


def _source(name):
    if name not in SOURCES:
        raise InputError(
            f"The corpus must be one of {list(SOURCES)}. Received: name={name!r}."
            f"{closest(name, SOURCES)}"
        )
    return SOURCES[name]


def _download(url, file, source, target):
    try:
        request = urllib.request.Request(url, headers=_HEADERS)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            expected = response.headers.get("Content-Length")
            with file.open("wb") as stream:
                shutil.copyfileobj(response, stream)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise InputError(
            f"Could not download {url} ({error}). Check the connection, give a `url` "
            f"that holds the same archive, or put {', '.join(source.minimum_bytes)} "
            f"into {target} by other means."
        ) from error
    received = file.stat().st_size
    if expected is not None and expected != str(received):
        raise InputError(
            f"The download of {url} broke off after {received} of {expected} bytes. "
            "Try again."
        )


def _extract(archive, source, directory):
    """Copies files by their full names: no path in an archive says where to write."""
    try:
        opener, copy = _format(archive)
        with opener(archive) as opened:
            for name in source.minimum_bytes:
                copy(opened, f"{source.folder}/{name}", directory / name)
    except KeyError as error:
        raise InputError(
            f"The archive lacks a file that it should hold: {error.args[0]}"
        ) from error
    except _DAMAGED as error:
        raise InputError(f"The archive is damaged: {error}. Try again.") from error


def _format(archive):
    """Returns the function that opens an archive, and that which copies out of it."""
    if zipfile.is_zipfile(archive):
        return zipfile.ZipFile, _copy_from_zip
    if tarfile.is_tarfile(archive):
        return tarfile.open, _copy_from_tar
    with archive.open("rb") as stream:
        start = stream.read(40)
    raise InputError(
        f"Expected a zip or tar archive. Received: a file that begins {start!r}."
    )


def _copy_from_zip(archive, member, file):
    with archive.open(member) as content, file.open("wb") as stream:
        shutil.copyfileobj(content, stream)


def _copy_from_tar(archive, member, file):
    entry = _tar_entry(archive, member)
    with archive.extractfile(entry) as content, file.open("wb") as stream:
        shutil.copyfileobj(content, stream)


def _tar_entry(archive, member):
    names = {entry.name.removeprefix("./"): entry for entry in archive.getmembers()}
    if member not in names or not names[member].isfile():
        raise KeyError(f"no regular file {member}")
    return names[member]


def _check_sizes(source, directory):
    for name, minimum in source.minimum_bytes.items():
        size = (directory / name).stat().st_size
        if size < minimum:
            raise InputError(
                f"Expected at least {minimum} bytes in {name} of the archive. "
                f"Received: {size}."
            )
        read_text(directory / name)
