"""What a search for fixed points carries from evaluation to evaluation."""

from typing import Any, NamedTuple

import tensorflow as tf


class Search(NamedTuple):
    """The variables of a solver's loop."""

    num_evaluations: tf.Tensor  # () int32, of the whole batch
    is_running: tf.Tensor  # () bool
    next_point: tf.Tensor  # (B, D)
    memory: Any
    best_point: tf.Tensor  # (B, D)
    best_value: tf.Tensor  # (B, D)
    best_error: tf.Tensor  # (B,)
    status: tf.Tensor  # (B,) int32, MAX_ITER while the sample is searched
    sample_evaluations: tf.Tensor  # (B,) int32
    trace: tf.Tensor | tuple[()]  # (max_iter, B), empty if it is not recorded
    answers: Any  # what the stopping rule remembers
