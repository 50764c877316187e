"""Conversion of weights to floating-point arrays, and checks of their values."""

import numpy as np

_HOW_TO = (
    "Weights are dense arrays of floating-point numbers. Of a PyTorch tensor make one "
    "with `tensor.detach().float().numpy()`, after `.dequantize()` or `.to_dense()` "
    "where it is quantized or sparse."
)


def as_array(name, value):
    """Returns a weight as a float32 or float64 array.

    Args:
        name: String. Name of the weight, for messages.
        value: Array-like of floating-point numbers, including 8 and 16 bits.

    Raises:
        ValueError: If `value` is not a floating-point array, or is empty.
    """
    try:
        array = np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` is no array but {type(value).__name__}. {_HOW_TO}"
        ) from error
    if not array.dtype.name.startswith(("float", "bfloat")):
        raise ValueError(
            f"`{name}` is of the dtype {array.dtype}{_raw(array.dtype)}. {_HOW_TO}"
        )
    if not array.size:
        raise ValueError(f"`{name}` is empty: its shape is {array.shape}.")
    # Also converts to the byte order of this machine.
    return array.astype("float64" if array.dtype.itemsize > 4 else "float32")


def _raw(dtype):
    """Returns a hint for raw bytes, which NumPy files with bfloat16 contain."""
    is_raw = dtype.kind == "V" and dtype.names is None
    return ", bytes of which NumPy does not know the meaning" if is_raw else ""


def faults(name, array, dtype):
    """Returns a list of problems with the values of an array for a variable's dtype."""
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(array.astype(dtype).astype("float64"))
    if not is_finite.all():
        count = array.size - np.count_nonzero(is_finite)
        return [f"not finite: {name}, in {count} of {array.size} numbers"]
    if name.endswith("running_var") and (array < 0).any():
        return [f"negative variance: {name}"]
    return []
