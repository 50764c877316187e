"""What is wrong with a record, in words that travel with it: none where it is fine."""

import tensorflow as tf

NONE = ""


def first(*checks):
    """Returns the words of the first check that fails, a string scalar.

    Args:
        checks: pairs of a bool scalar tensor, whether all is well, and words.
    """
    words = tf.constant(NONE)
    for is_fine, trouble in reversed(checks):
        words = tf.where(is_fine, words, trouble)
    return words


def refused(words, file, index, values):
    """Returns the tensors `values` of a record; fails where there is trouble with it.

    Args:
        words: string scalar, as `first` returns it.
        file: string scalar.
        index: int64 scalar. Of the record in the file.
        values: nest of tensors.
    """
    assertion = tf.debugging.Assert(words == NONE, [words, file, index])
    with tf.control_dependencies([assertion]):
        return tf.nest.map_structure(tf.identity, values)
