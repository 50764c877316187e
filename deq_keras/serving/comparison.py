"""Whether an exported file answers as the model does."""

import numpy as np

from deq_keras.serving.errors import ExportError

_LARGEST = float(np.finfo("float32").max)


def checked_difference(expected, answer, request, tolerance):
    """Returns the largest difference of a number between two answers.

    Args:
        expected: Dict of tensors, the answer of the model.
        answer: Dict of arrays, that of the file.
        request: Dict of arrays, for the message.
        tolerance: Float. See `check_export`.

    Raises:
        ExportError: If they differ by more, or in whole numbers or strings.
    """
    if set(expected) != set(answer):
        raise ExportError(
            "The exported file answers with other tensors than the model. Expected: "
            f"{sorted(expected)}. Received: {sorted(answer)}."
        )
    return max(
        _checked_difference(name, np.asarray(tensor), answer[name], request, tolerance)
        for name, tensor in expected.items()
    )


def _checked_difference(name, expected, received, request, tolerance):
    if expected.shape != received.shape:
        difference, is_wrong = np.inf, True
    elif expected.dtype.kind == "f":
        difference = _largest_difference(expected, received)
        is_wrong = not difference <= tolerance
    else:
        is_wrong = not np.array_equal(expected, received)
        difference = 0.0
    if is_wrong:
        budget = {
            key: request[key].item() for key in ("max_iter", "tol") if key in request
        }
        raise ExportError(
            "The exported file gives other answers than the model. One that is far "
            "from an equilibrium at its budget answers to rounding: train it further, "
            f"or export it with a larger `tolerance`. Expected: `{name}` of a batch of "
            f"{len(next(iter(request.values())))}, {budget}: {_shown(expected)}. "
            f"Received: {_shown(received)}."
        )
    return difference


def _largest_difference(expected, received):
    if not np.array_equal(np.isnan(expected), np.isnan(received)):
        return np.inf
    known = ~np.isnan(expected)
    # LiteRT has no constants that are infinite, and takes the largest number.
    one, two = (
        np.clip(x[known].astype("float64"), -_LARGEST, _LARGEST)
        for x in (expected, received)
    )
    size = np.max(np.abs(one[np.abs(one) < _LARGEST]), initial=1.0)
    return float(np.max(np.abs(one - two), initial=0.0) / size)


def _shown(array):
    return np.array2string(array.ravel()[:8], precision=6, threshold=8)
