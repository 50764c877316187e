"""Which parts of an injection belong to single samples."""

from collections.abc import Callable

import tensorflow as tf
from keras import tree

from deq_keras.structure import Nest


class InjectionRows:
    """Tells which leaves of an injection have a row for each sample.

    A kernel may happen to have as many rows as the batch has samples, and the length of
    a sequence may be as unknown as the batch. So the injection is traced for two sizes
    of the batch: what has rows follows it.

    Args:
        inject: Function of inputs and `training` that returns an injection.
    """

    def __init__(self, inject: Callable[[Nest, bool], Nest]) -> None:
        self.inject = inject
        self._known: dict[str, Nest] = {}

    def __call__(self, inputs: Nest, training: bool) -> Nest:
        """Returns a nest of Booleans like the injection of inputs `(batch, ...)`.

        `None` stands for a leaf whose first axis has no static size: who reshapes to
        `(-1, ...)` along an axis of unknown size hides it.
        """
        specs = [
            tree.map_structure(
                lambda leaf: tf.TensorSpec([batch, *leaf.shape[1:]], leaf.dtype), inputs
            )
            for batch in (2, 3)
        ]
        kind = str((specs[0], training))
        if kind not in self._known:
            two, three = (_first_axes(self.inject, spec, training) for spec in specs)
            self._known[kind] = tree.map_structure(
                lambda first, second: (
                    None if first is None else (first, second) == (2, 3)
                ),
                two,
                three,
            )
        return self._known[kind]


def _first_axes(
    inject: Callable[[Nest, bool], Nest], specs: Nest, training: bool
) -> Nest:
    with tf.init_scope():  # Nothing of it belongs to the graph of the caller.
        traced = tf.function(
            lambda inputs: inject(inputs, training), autograph=False
        ).get_concrete_function(specs)
    return tree.map_structure(_first_axis, traced.structured_outputs)


def _first_axis(leaf: tf.Tensor) -> int | None:
    if leaf.shape.rank is None:
        return None
    return leaf.shape[0] if leaf.shape.rank else 0
