"""Token ids that come from outside."""

import numpy as np

from ...errors import InputError


def array(ids):
    """Returns ids as an integer array `(num_tokens,)`.

    Raises:
        InputError: if they are no integers, or of another rank.
    """
    ids = np.asarray(ids)
    if not ids.size:
        ids = ids.astype(np.int32)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(
            "Token ids must be integers of shape (num_tokens,). Received: "
            f"shape={ids.shape}, dtype={ids.dtype}."
        )
    return ids


def checked(ids, size):
    """Returns ids as `array` does, if all are of a vocabulary.

    Args:
        ids: array-like of integers `(num_tokens,)`.
        size: int. The size of the vocabulary.

    Raises:
        InputError: if an id is not in `0 ... size - 1`, or as `array` raises it.
    """
    ids = array(ids)
    is_bad = (ids < 0) | (ids >= size)
    if is_bad.any():
        position = int(np.argmax(is_bad))
        raise InputError(
            f"Token ids must be in 0 ... {size - 1}. Received: id={ids[position]} at "
            f"position {position}."
        )
    return ids
