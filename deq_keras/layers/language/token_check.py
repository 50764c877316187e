"""Checks of token ids."""

import keras
import tensorflow as tf
from keras import ops


def check_token_ids(token_ids, vocabulary_size):
    """Checks that token ids are integers in the range of a vocabulary.

    Eager execution checks the range immediately, a graph at each run. XLA does not
    compile assertions, so `jit_compile=True` only checks the dtype.

    Args:
        token_ids: Integer tensor or array of any shape.
        vocabulary_size: Positive integer. Ids are in `[0, vocabulary_size)`.

    Returns:
        The ids as a tensor of dtype `int32` or `int64`.

    Raises:
        ValueError: If the ids are not integers.
        tf.errors.InvalidArgumentError: If an id is out of range.

    Example:

    >>> check_token_ids([[0, 4], [2, 1]], vocabulary_size=5).dtype
    tf.int32
    """
    token_ids = ops.convert_to_tensor(token_ids)
    # A narrow dtype might not represent the vocabulary size.
    if check_token_dtype(token_ids.dtype) != "int32":
        token_ids = ops.cast(token_ids, "int64")
    message = (
        f"Token ids must be in the range [0, {vocabulary_size}), the size of the "
        "vocabulary."
    )
    checks = [
        tf.debugging.assert_non_negative(token_ids, message=message),
        tf.debugging.assert_less(
            token_ids, tf.cast(vocabulary_size, token_ids.dtype), message=message
        ),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(token_ids)


def check_token_dtype(dtype):
    """Returns the name of an integer dtype. Raises `ValueError` for other dtypes."""
    dtype = keras.backend.standardize_dtype(dtype)
    if "int" not in dtype:
        raise ValueError(
            "Token ids must be integers. Pass arrays of an integer dtype and give "
            f"`keras.Input` the argument `dtype='int32'`. Received: dtype={dtype}"
        )
    return dtype
