"""The base of the starts of a solve."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from deq_keras.serialization import Configured
from deq_keras.structure import Nest


class Start(Configured):
    """Where the solve of a sample begins.

    A start holds only its configuration, round-trips through `get_config`, and may be
    shared by layers. Subclasses write `__call__`.

    Attributes:
        is_random: Boolean. Whether it is drawn.
        initializer: The `keras.initializers.Initializer` of the weights it needs, which
            the layer holds; `None` where it needs none.

    Call arguments:
        state: Nest of `(batch, ...)` tensors. What the cell starts from.
        seed: Int32 tensor of shape `(2,)`. Every draw follows from it. `None`, outside
            of training unless a user asks for a draw: nothing is drawn.
        learned: Sequence of tensors `(features,)`, the layer's weights for each leaf of
            `state`, or `None`.

    Returns:
        A nest like `state`.
    """

    is_random = False
    initializer = None

    @property
    def random_part(self) -> Start | None:
        """The start that further searches of a sample are drawn from, or `None`.

        They all get its draws: it is called with zeros, whatever the cell starts from.
        """
        return self if self.is_random else None

    def __call__(
        self,
        state: Nest,
        seed: tf.Tensor | None = None,
        learned: Sequence[tf.Tensor] | None = None,
    ) -> Nest:
        raise NotImplementedError
