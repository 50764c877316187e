"""Files and folders that are there completely or not at all."""

import contextlib
import errno
import os
import pathlib
import tempfile


@contextlib.contextmanager
def writing(path):
    """Gives a temporary path to write to, which is then called `path`.

    After an exception nothing is left.

    Args:
        path: String or `pathlib.Path` of a file or a folder that is not there yet. Its
            parents are made.

    Raises:
        FileExistsError: If there is something at `path`.
    """
    path = pathlib.Path(path).absolute()
    _check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.", dir=path.parent
    ) as folder:
        temporary = pathlib.Path(folder, path.name)
        yield temporary
        _check_free(path)
        os.replace(temporary, path)


def _check_free(path):
    if path.exists():
        message = "There is something already. Choose another path"
        raise FileExistsError(errno.EEXIST, message, str(path))
