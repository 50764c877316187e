"""String tensors as Python strings."""

import tensorflow as tf


def python_strings(texts):
    """Returns a string tensor as KerasHub's tokenizers do: a str or a list of str in
    eager execution, itself in a graph.

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
