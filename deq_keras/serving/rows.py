"""A check in the graph that all tensors of a request have the same samples."""

import tensorflow as tf
from keras import tree


def with_rows_of(first, tensors):
    """Returns a nest of `(batch, ...)` tensors that fails when it runs if one has
    another number of rows than `first`. TensorFlow and its exports broadcast one row.

    Args:
        first: Tensor `(batch, ...)`.
        tensors: Nest of tensors. Scalars stay as they are.

    Raises:
        ValueError: If static numbers of rows differ.
    """
    if not first.shape.rank:
        return tensors
    return tree.map_structure(lambda leaf: _with_rows_of(first, leaf), tensors)


def _with_rows_of(first, leaf):
    if leaf is first or not leaf.shape.rank:
        return leaf
    expected, received = first.shape[0], leaf.shape[0]
    if None in (expected, received):
        # LiteRT and ONNX lack assertions but have reshapes. Grappler removes a reshape
        # with a single open axis, unless `abs` hides where its sizes come from.
        shape = tf.abs(tf.concat([tf.shape(first)[:1], tf.shape(leaf)[1:]], axis=0))
        result = tf.reshape(leaf, shape)
        result.set_shape(leaf.shape)
        return result
    if expected != received:
        raise ValueError(
            "All inputs and initial states of a request must have the same number of "
            f"rows, one for each sample. Received: {expected} and {received} rows."
        )
    return leaf
