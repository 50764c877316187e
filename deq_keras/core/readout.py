"""Computes answers, comparable integers or Booleans, from states or outputs."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.structure import Nest


def check_answer(answer: Any) -> Callable[[Nest], Nest]:
    """Returns `answer`, a function, or raises `ValueError`."""
    if not callable(answer):
        raise ValueError(
            "`answer` must be a function to integer or Boolean tensors "
            f"(batch, ...). Received: answer={answer!r}."
        )
    return answer


def read_answers(answer: Callable[[Nest], Nest], source: Nest) -> Nest:
    """Returns the answers that `answer` computes from `source`.

    Args:
        answer: Function from a nest of `(batch, ...)` tensors to a nest of integer or
            Boolean tensors `(batch, ...)`.
        source: Nest of `(batch, ...)` tensors.

    Raises:
        ValueError: If `answer` returns other tensors.
    """
    batch_size = tree.flatten(source)[0].shape[:1]
    answers = tree.map_structure(tf.convert_to_tensor, answer(source))
    for leaf in tree.flatten(answers):
        has_rows = leaf.shape[:1].is_compatible_with(batch_size)
        if not has_rows or not (leaf.dtype.is_integer or leaf.dtype.is_bool):
            raise ValueError(
                "`answer` must return integer or Boolean tensors (batch, ...), because "
                "computed floats are rarely equal. For example, return the argmax of "
                "logits over the last axis. Received: "
                f"dtype={leaf.dtype.name}, shape={leaf.shape}, of a batch of shape "
                f"{tree.flatten(source)[0].shape}."
            )
    return answers


def equal_answers(answers: Nest, others: Nest) -> tf.Tensor:
    """Returns a mask `(batch,)` of samples whose answers are all equal."""
    is_equal = [
        tf.reduce_all(tf.equal(one, other), axis=list(range(1, one.shape.rank)))
        for one, other in zip(tree.flatten(answers), tree.flatten(others), strict=True)
    ]
    return tf.reduce_all(tf.stack(is_equal), axis=0)
