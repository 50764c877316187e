"""The configs that come with the package, found by names such as `residual/digits`."""

import os
import re
from pathlib import Path

from ..errors import InputError
from .errors import closest, shorten

_PACKAGE, _CHECKOUT = Path(__file__).resolve().parents[1:3]
# A wheel has the configs in the folder of the package, and a checkout beside it.
FOLDER = _PACKAGE / "configs"
if not FOLDER.exists():
    FOLDER = _CHECKOUT / "configs"


def names():
    """Returns the names of all shipped configs."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.yaml"))


def subject(name):
    """Returns the first sentence of the comment at the top of a shipped config."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    comment = re.match(r"(?:#.*\n)*", text)[0]
    words = " ".join(comment.replace("#", " ").split())
    # "et al." does not end a sentence.
    return re.match(r".*?(?<! al)[.?:](?= |$)", words)[0].rstrip(".:")


def find(text):
    """Returns the path of a config file.

    Args:
        text: str. The path of a file, or the name of a shipped config, with or without
            `configs/` and `.yaml`. A file takes precedence.

    Raises:
        InputError: If neither exists.
    """
    if os.path.exists(text):
        return Path(text)
    name = os.path.normpath(text).removeprefix("configs/").removesuffix(".yaml")
    if name in names():
        return FOLDER / f"{name}.yaml"
    raise InputError(
        f"There is neither a file {shorten(text)} nor a shipped config of that name."
        f"{closest(name, names())}"
    )
