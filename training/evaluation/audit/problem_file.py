"""Reads a user's problems for an audit from `.npz` files."""

from pathlib import Path

import numpy as np

from ...config.errors import closest
from ...errors import InputError, reading
from ...files.input_file import check_file
from ..settling import floor
from .group import Group

_NEEDED = ("inputs", "targets")
_OPTIONAL = ("weights", "difficulty", "distance")
_REMEDY = "Write it with numpy.savez(path, inputs=..., targets=...)."


def read_problems(path, reach=None):
    """Returns the problems of an `.npz` file as a `Group` with the file's name.

    The file must have the arrays `inputs` and `targets`. It may have `weights` and
    `difficulty` (see `Group`), and `distance`: non-negative integers, the distance that
    information must travel in each problem, in steps between neighboring positions.

    Args:
        path: Path of the file.
        reach: Positive integer. Number of steps that information travels per
            evaluation. Defaults to `None`, unknown, without a floor for the group.

    Raises:
        InputError: If the file is not an `.npz` file with the expected arrays.
    """
    check_file(path, "file of problems")
    with reading(path, _REMEDY):
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    _check_names(path, arrays)
    distance = arrays.pop("distance", None)
    if distance is not None:
        _check_distance(path, distance, len(arrays["inputs"]))
        distance = floor(distance, reach)
    return Group(Path(path).stem, **arrays, floor=distance)


def _check_names(path, arrays):
    known = (*_NEEDED, *_OPTIONAL)
    for name in arrays:
        if name not in known:
            raise InputError(
                f"{path}: unknown array `{name}`.{closest(name, known)} Arrays "
                f"are: {', '.join(known)}."
            )
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise InputError(
            f"{path} must have the arrays `inputs` and `targets`. Received: "
            f"{', '.join(arrays) or 'none'}. {_REMEDY}"
        )
    for name, array in arrays.items():
        if array.ndim == 0 or array.dtype.kind not in "biuf":
            raise InputError(
                f"{path}: `{name}` must be an array of numbers, an entry for each "
                f"problem. Received: shape {array.shape}, dtype {array.dtype}."
            )


def _check_distance(path, distance, count):
    is_whole = distance.dtype.kind in "iu" and distance.shape == (count,)
    if not is_whole or np.any(distance < 0):
        raise InputError(
            f"{path}: `distance` must have an integer >= 0 for each of the {count} "
            f"problems. Received: shape {distance.shape}, dtype {distance.dtype}"
            f"{f', minimum {distance.min()}' if distance.size else ''}."
        )
