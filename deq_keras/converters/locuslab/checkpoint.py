"""State dicts of the reference (PyTorch, locuslab/deq), and their assignment."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from deq_keras.core.checks import did_you_mean

_HOW_TO = (
    "Weights are dense arrays of floating-point numbers. Of a PyTorch tensor make one "
    "with `tensor.detach().float().numpy()`, after `.dequantize()` or `.to_dense()` "
    "where it is quantized or sparse."
)
# Prefixes of models wrapped for several devices, by `torch.compile` or with a loss.
_WRAPPERS = re.compile(r"((module|_orig_mod|model)\.)*")
StateDict: TypeAlias = dict[str, np.ndarray]
Variables: TypeAlias = dict[str, keras.Variable]


def known_arguments(
    architecture: Mapping[str, Any], names: Collection[str], others: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the arguments of an architecture, without those that are `None`.

    The constructor of the model checks their values, or the weights contradict them.

    Args:
        architecture: Dict of arguments by the names of the reference.
        names: Collection of all names that the reference has.
        others: List of further arguments of the loading function, for the hint.

    Raises:
        ValueError: If an argument is unknown.
    """
    hints = [*names, "solver", "gradient", "regularizer", "dtype", *others]
    for name, value in architecture.items():
        if name not in names:
            raise ValueError(
                f"Unknown argument `{name}`.{did_you_mean(name.lower(), hints)} The "
                f"architecture takes: {', '.join(sorted(names))}. "
                f"Received: {name}={value!r}."
            )
    return {name: value for name, value in architecture.items() if value is not None}


def check_dtype(dtype: Any) -> None:
    """Raises `ValueError` unless a dtype or policy has floating-point weights."""
    if "float" not in keras.dtype_policies.get(dtype).variable_dtype:
        raise ValueError(
            "`dtype` must be a floating-point dtype, a policy such as mixed_bfloat16, "
            f"or None, Keras' own. Received: dtype={dtype!r}."
        )


@contextlib.contextmanager
def read_sizes(model: str, entries: str, state_dict: StateDict) -> Iterator[None]:
    """Adds the model and the entries with its sizes to errors of `shape`.

    Args:
        model: String. The model, with its article.
        entries: String. The entries that the sizes are read from.
        state_dict: Dict from names to arrays.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"The sizes of {model} are read from {entries}. The checkpoint lacks one, "
            f"or it has a wrong rank: {error}. It holds: "
            f"{', '.join(sorted(state_dict)) or 'nothing'}."
        ) from error


def shape(state_dict: StateDict, name: str, *ranks: int) -> tuple[int, ...]:
    """Returns the shape of an entry.

    Args:
        state_dict: Dict from names to arrays.
        name: String. Name of the entry.
        *ranks: Positive integers. Valid numbers of axes.

    Raises:
        ValueError: If the entry is missing or has another rank.
    """
    if name not in state_dict:
        raise ValueError(f"it has no {name}")
    found = state_dict[name].shape
    if len(found) not in ranks:
        expected = " or ".join(map(str, ranks))
        raise ValueError(f"{name} must have rank {expected}, and has the shape {found}")
    return found


def count(names: Iterable[str], pattern: str, start: int = 0) -> int:
    """Counts consecutive numbers, from `start`, that occur in names.

    Args:
        names: Iterable of strings.
        pattern: String. Prefix of the names with a placeholder, such as `"blocks.{}."`.
        start: Integer. The first number. Defaults to `0`.
    """
    number = 0
    while any(name.startswith(pattern.format(start + number)) for name in names):
        number += 1
    return number


def check_agreement(found: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises `ValueError` if an argument contradicts the weights.

    Args:
        found: Dict of arguments that the weights determine.
        given: Dict of arguments of the user.
    """
    for name, value in found.items():
        other = given.get(name, value)
        other = list(other) if isinstance(other, list | tuple) else other
        if other != value:
            raise ValueError(
                f"The weights say {name}={value}. Received: {name}={other}."
            )


def read_state_dict(
    state_dict: Mapping[str, Any], is_ignored: Callable[[str], bool]
) -> StateDict:
    """Returns float32 and float64 arrays by their names without wrapper prefixes.

    Args:
        state_dict: Mapping from names to array-likes of floating-point numbers,
            including 8 and 16 bits.
        is_ignored: Function that returns whether to skip a name.

    Raises:
        ValueError: If it is not a mapping, two names become equal, or a value is empty
            or not an array of floating-point numbers.
    """
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            "Expected a mapping of names to arrays. Received: "
            f"state_dict of type {type(state_dict).__name__}."
        )
    arrays: StateDict = {}
    for full_name, value in state_dict.items():
        if not isinstance(full_name, str):
            raise ValueError(
                f"Names of weights must be strings. Received: {full_name!r}."
            )
        name = _WRAPPERS.sub("", full_name, count=1)
        if is_ignored(name):
            continue
        if name in arrays:
            raise ValueError(
                f"The checkpoint has `{name}` twice: names without wrappers must "
                f"differ. Received: another entry {full_name!r}."
            )
        try:
            array = np.asarray(value)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"`{name}` is no array but {type(value).__name__}. {_HOW_TO}"
            ) from error
        if not array.dtype.name.startswith(("float", "bfloat")):
            raise ValueError(f"`{name}` is of the dtype {array.dtype}. {_HOW_TO}")
        if not array.size:
            raise ValueError(f"`{name}` is empty: its shape is {array.shape}.")
        # `astype` also converts to the byte order of this machine.
        arrays[name] = array.astype(
            "float64" if array.dtype.itemsize > 4 else "float32"
        )
    return arrays


def without_ones(array: np.ndarray, rank: int) -> np.ndarray:
    """Returns an array without the axes of size 1 after its first `rank` axes.

    An array with another rank or other sizes there is returned unchanged.
    """
    has_ones_only = all(size == 1 for size in array.shape[rank:])
    return array.reshape(array.shape[:rank]) if has_ones_only else array


def layer_variables(name: str, layer: keras.layers.Layer) -> Variables:
    """Returns the variables of a dense or convolutional layer by the reference's names.

    Args:
        name: String. The reference's name of the layer.
        layer: Layer of Keras, weight-normalized or not.
    """
    variables = {f"{name}.bias": layer.bias} if layer.use_bias else {}
    if hasattr(layer, "gain"):
        variables[f"{name}.weight_g"] = layer.gain
        variables[f"{name}.weight_v"] = layer.direction
    else:
        variables[f"{name}.weight"] = layer.kernel
    return variables


def assign(
    variables: Variables,
    state_dict: StateDict,
    as_keras: Callable[[str, np.ndarray], np.ndarray],
) -> None:
    """Assigns all variables, or raises an error that names every mismatch.

    Non-finite numbers count as a mismatch. After an error, no variable has changed.

    Args:
        variables: Dict from names to variables. Tied variables have several names.
        state_dict: Dict from the reference's names to arrays.
        as_keras: Function that returns the array of a name in Keras' layout.

    Raises:
        ValueError: If anything does not match.
    """
    # Collect all mismatches first: a user corrects them together, and an error leaves
    # the model as it was.
    arrays = {
        name: as_keras(name, state_dict[name])
        for name in variables
        if name in state_dict
    }
    found = {id(variables[name]) for name in arrays}
    missing = [name for name in variables if id(variables[name]) not in found]
    problems = [f"missing: {name}" for name in sorted(missing)]
    problems += [
        f"left over: {name}" for name in sorted(set(state_dict) - set(variables))
    ]
    problems += [
        f"wrong shape: {name} of shape {state_dict[name].shape}, which in Keras' "
        f"layout is {array.shape} and not {tuple(variables[name].shape)}"
        for name, array in sorted(arrays.items())
        if array.shape != tuple(variables[name].shape)
    ]
    for name, array in sorted(arrays.items()):
        with np.errstate(over="ignore"):
            stored = array.astype(variables[name].dtype).astype("float64")
        is_finite = np.isfinite(stored)
        if not is_finite.all():
            number = array.size - np.count_nonzero(is_finite)
            problems.append(f"not finite: {name}, in {number} of {array.size} numbers")
        elif name.endswith("running_var") and (array < 0).any():
            problems.append(f"negative variance: {name}")
    if problems:
        raise ValueError(
            "The checkpoint does not fit the architecture. " + "; ".join(problems) + "."
        )
    for name, array in arrays.items():
        variables[name].assign(array)
