"""Corpora from where their authors keep them."""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import keras

from ...config.refusal import closest
from ...errors import InputError
from .corpus import from_directory


class Source(NamedTuple):
    """Where a corpus is.

    Attributes:
        url: of a zip or tar archive.
        folder: of the files in the archive.
    """

    url: str
    folder: str


# The archives of WikiText are those of the author: the bucket of the paper,
# research.metamind.io, is closed since 2024.
SOURCES = {
    "wikitext-103": Source(
        "https://wikitext.smerity.com/wikitext-103-v1.zip", "wikitext-103"
    ),
    "wikitext-2": Source(
        "https://wikitext.smerity.com/wikitext-2-v1.zip", "wikitext-2"
    ),
    "ptb": Source(
        "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        "simple-examples/data",
    ),
}


def fetch(name, directory, url=None):
    """Downloads a corpus into the new folder `directory / name`.

    The folder appears when it is complete, or not at all.

    Args:
        name: `"wikitext-103"`, `"wikitext-2"` or `"ptb"`.
        directory: folder that takes the new one; made if needed.
        url: optional str. Another place of the same archive, also `file://...`.

    Returns:
        The path of the new folder, for `from_directory`.

    Raises:
        InputError: if the folder exists already, or the archive cannot be downloaded or
            does not hold the corpus.
    """
    if name not in SOURCES:
        raise InputError(
            f"The corpus must be one of {list(SOURCES)}. Received: name={name!r}."
            f"{closest(name, SOURCES)}"
        )
    source, target = SOURCES[name], Path(directory) / name
    if os.path.lexists(target):
        raise InputError(
            f"{target} exists already and is not overwritten. Read it, or remove it "
            "to download it again."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    url = url or source.url
    with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as work:
        _unpack(url, name, work, target)
        folder = Path(work, name, source.folder)
        from_directory(folder)  # Raises where it is none.
        os.replace(folder, target)
    return target


def _unpack(url, name, work, target):
    try:
        keras.utils.get_file(name, url, extract=True, cache_dir=work, cache_subdir="")
    except Exception as error:  # Keras raises no narrower class.
        raise InputError(
            f"Could not download and unpack {url} ({error}). Check the connection and "
            "try again, give a `url` that holds the same archive, or put the files of "
            f"the corpus into {target} by other means."
        ) from error
