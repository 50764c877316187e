"""Checks of a user's files and folders."""

import os
from pathlib import Path

import pytest

from training.errors import InputError
from training.files.input_file import check_file, check_folder, check_new


@pytest.fixture
def places(tmp_path):
    """A folder of a file, a folder, a broken link and a pipe."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


LONG = "x" * 300


@pytest.mark.parametrize("name", ["nothing", "folder", "link", "pipe", LONG, "a\0b"])
def test_path_that_is_no_file_raises(places, name):
    check_file(places / "file")
    with pytest.raises(InputError, match=f"text {places}/{name}"):
        check_file(f"{places}/{name}", "text")


@pytest.mark.parametrize("name", ["nothing", "file", "link", LONG])
def test_path_that_is_no_folder_raises(places, name):
    check_folder(places / "folder")
    with pytest.raises(InputError, match=f"data {places}/{name}"):
        check_folder(places / name, "data")


@pytest.mark.parametrize("name", ["file", "folder", "link", "nothing/x", "file/x"])
def test_output_that_is_not_new_raises(places, name):
    check_new(places / "x")
    with pytest.raises(InputError, match="--out"):
        check_new(places / name)


def test_unreadable_file_raises(places, monkeypatch):
    def denied(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        check_file(Path(places / "file"))
