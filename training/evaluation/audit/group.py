"""Groups of problems to audit together, and problems of a user's file."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config.errors import closest
from ...data.reasoning import in_even_batches
from ...errors import InputError, reading
from ...files.input_file import check_file
from ..settling import floor

_NEEDED = ("inputs", "targets")
_OPTIONAL = ("weights", "difficulty", "distance")
_REMEDY = "Write it with numpy.savez(path, inputs=..., targets=...)."


class Group(NamedTuple):
    """A group of problems with their targets.

    Attributes:
        label: String. Unique name of the group, such as a size.
        inputs: Array `(examples, ...)`. Inputs of the model, at least two examples.
        targets: Integer array `(examples, *positions)`. Correct classes.
        weights: Array like `targets`. Positions with weight zero are ignored. Defaults
            to `None`, all positions.
        difficulty: Array `(examples,)` of numbers. Defaults to `None`, unknown.
        floor: Integer. Minimum number of evaluations in which information can travel as
            far as necessary. Defaults to `None`, unknown.
    """

    label: str
    inputs: Any
    targets: Any
    weights: Any = None
    difficulty: Any = None
    floor: int | None = None

    def batches(self, size):
        """Splits inputs, targets and weights into batches of almost equal size.

        Args:
            size: Integer, at least 3. Maximum batch size. Batches have at least two
                examples.
        """
        weights = self.weights
        if weights is None:
            weights = np.ones(np.shape(self.targets), "float32")
        return in_even_batches((self.inputs, self.targets, weights), size)


def check_groups(groups):
    """Raises `InputError` unless a list of `Group` is valid."""
    labels = [group.label for group in groups]
    if not labels or len(set(labels)) < len(labels):
        raise InputError(
            "There must be at least one group of problems, each with a label of its "
            f"own. Received: labels={labels}."
        )
    for group in groups:
        _check(group)


def _check(group):
    count = len(group.inputs)
    if count < 2:
        raise InputError(
            "There must be at least two problems: one starts where another ended. "
            f"Received: {count} in the group {group.label!r}."
        )
    for name in ("inputs", "weights", "difficulty"):
        _check_finite(group, name)
    for name in ("targets", "weights", "difficulty"):
        array = getattr(group, name)
        if array is not None and (not np.ndim(array) or len(array) != count):
            raise InputError(
                f"`{name}` must have an entry for each of the {count} problems in "
                f"`inputs`. Received: shape {np.shape(array)}."
            )
    if not np.issubdtype(np.asarray(group.targets).dtype, np.integer):
        raise InputError(
            "`targets` must be integers, the classes. Received: dtype "
            f"{np.asarray(group.targets).dtype}."
        )
    if group.weights is not None and np.shape(group.weights) != np.shape(group.targets):
        raise InputError(
            f"`weights` must be like `targets`, of shape {np.shape(group.targets)}. "
            f"Received: shape {np.shape(group.weights)}."
        )
    if group.weights is not None:
        _check_counts(group)
    if group.difficulty is not None and np.ndim(group.difficulty) != 1:
        raise InputError(
            f"`difficulty` must have one number for each problem, shape ({count},). "
            f"Received: shape {np.shape(group.difficulty)}."
        )


def _check_finite(group, name):
    array = getattr(group, name)
    if array is None:
        return
    finite = np.isfinite(np.asarray(array, "float64"))
    usable = finite.reshape(len(finite), -1).all(axis=1) if finite.ndim else finite
    if not usable.all():
        raise InputError(
            f"`{name}` must be finite. Received: NaN or infinity in "
            f"{np.sum(~usable)} of the {usable.size} problems of the group "
            f"{group.label!r}. Repair these problems, or leave them out."
        )


def _check_counts(group):
    """Raises `InputError` if all positions of a problem have weight zero."""
    counts = np.reshape(group.weights, (len(group.inputs), -1)).any(axis=1)
    if not counts.all():
        raise InputError(
            "`weights` must be other than zero at one position of each problem or "
            f"more: without one, any answer is right. Received: {np.sum(~counts)} of "
            f"the {len(counts)} problems of the group {group.label!r} with weights "
            "that are all zero. Leave these problems out, or leave out `weights`."
        )


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
