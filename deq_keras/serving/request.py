"""Checks requests before a runtime sees them: runtimes broadcast, cast and crash."""

import numpy as np
import tensorflow as tf

# Kinds of arrays that convert to each kind of tensor. Booleans are not numbers.
_CONVERTED = {
    "boolean": ("boolean",),
    "integer": ("integer",),
    "floating-point": ("integer", "floating-point"),
    "complex": ("integer", "floating-point", "complex"),
    "string": ("string",),
}


def chosen_signature(request, signatures):
    """Returns the signature that takes the names of a request.

    Args:
        request: Dict of arrays.
        signatures: List of dicts of names to `tf.TensorSpec`s.

    Raises:
        ValueError: If no signature takes exactly these names.
    """
    for specs in signatures:
        if set(specs) == set(request):
            return specs
    expected = dict.fromkeys(", ".join(sorted(specs)) for specs in signatures)
    raise ValueError(
        "No signature takes these inputs. Expected: "
        f"{' or '.join(f'[{names}]' for names in expected)}. "
        f"Received: [{', '.join(sorted(request))}]."
    )


def checked_request(request, specs):
    """Returns a request as arrays of the shapes and dtypes that a file takes.

    Numbers of another width are converted, and integers to floating-point numbers.

    Args:
        request: Dict of arrays, or of what `np.asarray` turns into arrays.
        specs: Dict of the same names to `tf.TensorSpec`s.

    Raises:
        ValueError: If an array has another rank, another static dimension or another
            kind of dtype, or if batched arrays have different numbers of rows.
    """
    arrays = {name: _checked(name, request[name], spec) for name, spec in specs.items()}
    _check_rows(arrays, specs)
    return arrays


def num_rows(arrays, specs):
    """Returns the number of samples of a request, or `None` if its file has a fixed
    one."""
    return next((len(arrays[name]) for name in _batched(specs)), None)


def one_row(arrays, specs):
    """Returns an empty request with one sample, of zeros or empty strings."""

    def padded(array):
        empty = b"" if array.dtype.kind == "O" else 0
        return np.full((1, *array.shape[1:]), empty, array.dtype)

    return {**arrays, **{name: padded(arrays[name]) for name in _batched(specs)}}


def _checked(name, value, spec):
    array = _array(name, value)
    kind = _kind(array.dtype)
    if kind not in _CONVERTED[_kind(spec.dtype)]:
        kinds = " or ".join(_CONVERTED[_kind(spec.dtype)])
        raise ValueError(
            f"`{name}` must have a dtype of kind {kinds}, which is sent as "
            f"{spec.dtype.name}. Received: {_shown(name, array)}."
        )
    if not spec.shape.is_compatible_with(array.shape):
        raise ValueError(
            f"`{name}` must have the shape {_shape(spec.shape)}. "
            f"Received: {_shown(name, array)}."
        )
    return _converted(name, array, spec.dtype, kind)


def _array(name, value):
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an array, or lists of equal lengths. "
            f"Received: {name} of type {type(value).__name__} ({error})."
        ) from error


def _converted(name, array, dtype, kind):
    if kind == "string":
        return np.asarray(array, object)
    with np.errstate(over="ignore"):  # An overflow is infinite: its sample fails.
        result = np.asarray(array, dtype.as_numpy_dtype, order="C")
    if dtype.is_integer and not np.array_equal(result, array):
        raise ValueError(
            f"`{name}` must have values from {dtype.min} to {dtype.max}. Received: "
            f"{name} with values from {array.min()} to {array.max()}."
        )
    if name == "tol" and not np.isfinite(result).all():
        raise ValueError(
            "`tol` must be a finite number; a negative one stands for the tolerance of "
            f"the solvers. Received: tol={array.item()!r}."
        )
    return result


def _check_rows(arrays, specs):
    rows = {name: len(arrays[name]) for name in _batched(specs)}
    if len(set(rows.values())) > 1:
        raise ValueError(
            "All inputs and initial states of a request must have the same number of "
            f"rows, one for each sample. Received: {rows}."
        )


def _batched(specs):
    """Returns the names whose first axis is open: the batch axis."""
    return [
        name
        for name, spec in specs.items()
        if spec.shape.rank and spec.shape[0] is None
    ]


def _kind(dtype):
    """Returns the kind of a dtype of NumPy or TensorFlow, or `None`."""
    try:
        dtype = tf.as_dtype(dtype)
    except TypeError:
        return None
    return {
        dtype.is_bool: "boolean",
        dtype.is_integer: "integer",
        dtype.is_floating: "floating-point",
        dtype.is_complex: "complex",
        dtype == tf.string: "string",
    }.get(True)


def _shown(name, array):
    value = f"={array.item()!r}" if array.ndim == 0 else f" of shape {array.shape}"
    return f"{name}{value} of dtype {array.dtype}"


def _shape(shape):
    if shape.rank is None:
        return "(batch, ...)"
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
