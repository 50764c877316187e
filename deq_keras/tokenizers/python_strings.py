"""String tensors as Python strings."""

import tensorflow as tf


def python_strings(texts):
    """Converts a string tensor to a string or list of strings in eager execution.

    In a graph, returns the tensor unchanged, like KerasHub's tokenizers.

    Example:

    >>> python_strings(tf.constant(["n\\u00e9", "b"]))
    ['né', 'b']
    """
    if not tf.executing_eagerly():
        return texts
    values = texts.numpy()
    if isinstance(values, bytes):
        return values.decode("utf-8")
    return [value.decode("utf-8") for value in values]
