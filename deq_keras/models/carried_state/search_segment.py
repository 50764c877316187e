"""What one update of a carried batch found."""

from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.solvers import Solution


class SearchSegment(NamedTuple):
    """What one training step of a `CarriedStateModel` saw and found.

    Attributes:
        examples: Nest of tensors `(batch, ...)`: `(x, y)` or `(x, y, sample_weight)`.
        outputs: Nest of tensors `(batch, ...)`: what the model returned.
        solution: The `deq_keras.solvers.Solution` of the layer.
        num_segments: Int32 tensor `(batch,)`. How many each sample has had, this one
            included.
    """

    examples: Any
    outputs: Any
    solution: Solution
    num_segments: tf.Tensor
