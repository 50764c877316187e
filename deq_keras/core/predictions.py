"""Computes predictions, comparable integers or Booleans, from states or outputs."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.structure import Nest


def check_predict(predict: Any) -> Callable[[Nest], Nest]:
    """Returns `predict`, a function, or raises `ValueError`."""
    if not callable(predict):
        raise ValueError(
            "`predict` must be a function to integer or Boolean tensors "
            f"(batch, ...). Received: predict={predict!r}."
        )
    return predict


def read_predictions(predict: Callable[[Nest], Nest], source: Nest) -> Nest:
    """Returns the predictions that `predict` computes from `source`.

    Args:
        predict: Function from a nest of `(batch, ...)` tensors to a nest of integer or
            Boolean tensors `(batch, ...)`.
        source: Nest of `(batch, ...)` tensors.

    Raises:
        ValueError: If `predict` returns other tensors.
    """
    batch_size = tree.flatten(source)[0].shape[:1]
    predictions = tree.map_structure(tf.convert_to_tensor, predict(source))
    for leaf in tree.flatten(predictions):
        has_rows = leaf.shape[:1].is_compatible_with(batch_size)
        if not has_rows or not (leaf.dtype.is_integer or leaf.dtype.is_bool):
            raise ValueError(
                "`predict` must return integer or Boolean tensors (batch, ...): "
                "computed floats are rarely equal. For example, return the argmax of "
                "logits over the last axis. Received: "
                f"dtype={leaf.dtype.name}, shape={leaf.shape}, of a batch of shape "
                f"{tree.flatten(source)[0].shape}."
            )
    return predictions


def equal_predictions(predictions: Nest, others: Nest) -> tf.Tensor:
    """Returns a mask `(batch,)` of samples whose predictions are all equal."""
    pairs = zip(tree.flatten(predictions), tree.flatten(others), strict=True)
    is_equal = [
        tf.reduce_all(tf.equal(one, other), axis=list(range(1, one.shape.rank)))
        for one, other in pairs
    ]
    return tf.reduce_all(tf.stack(is_equal), axis=0)
