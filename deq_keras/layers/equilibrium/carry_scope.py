"""A scope in which an equilibrium layer continues from earlier states."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras import solvers
from deq_keras.core import nonfinite
from deq_keras.core.structure import Nest, StateStructure, where_rows, with_rows_of
from deq_keras.layers.equilibrium.ambient import AmbientScopes

_ENTERED: AmbientScopes[CarryScope] = AmbientScopes("deq_keras_carry_scope")


class CarryScope:
    """Continues the `DEQ` layer of a model in training from given states.

    Each training step continues the solve of the step before, as
    `deq_keras.models.ContinuousBatchingModel` does. Calls outside training and other
    threads ignore it.

    Args:
        state: Nest of tensors `(batch, ...)`, as the layer returned it. No gradient
            flows into it. Its precision may differ from the layer's.
        continues: Boolean tensor `(batch,)`, true for samples that continue from
            `state`. Other samples, and non-finite ones, start at the layer's initial
            state.

    Attributes:
        state: Nest like the layer's state. The layer's output, without a gradient.
            `None` before the call.
        solution: The `deq_keras.solvers.Solution` of the call, or `None`.

    Raises:
        ValueError: If the model calls several equilibrium layers, or one twice; or if
            the state belongs to another batch.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16))
    >>> inputs = np.ones((2, 3), "float32")
    >>> with CarryScope(tf.zeros((2, 16)), continues=[True, False]) as scope:
    ...     outputs = deq(inputs, training=True)
    >>> scope.state.shape
    TensorShape([2, 16])
    """

    def __init__(self, state: Nest, continues: tf.Tensor) -> None:
        self._carried = state
        self._continues = continues
        self.state: Nest | None = None
        self.solution: solvers.Solution | None = None

    @staticmethod
    def entered() -> CarryScope | None:
        """Returns the innermost scope that is valid for a call made now, or `None`."""
        return next(iter(_ENTERED.valid()), None)

    @staticmethod
    def check_compiled_call() -> None:
        """Raises `ValueError` if a compiled training step is called within a scope."""
        if _ENTERED.entered():
            raise ValueError(
                "A CarryScope does not reach a training step that was compiled outside "
                "of it. Enter the scope within the compiled function."
            )

    def __enter__(self) -> CarryScope:
        _ENTERED.enter(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _ENTERED.leave()

    def first_state(self, state: Nest) -> Nest:
        """Returns the state from which the layer starts.

        Args:
            state: Nest of `(batch, ...)` tensors. The start without the scope.
        """
        if self.solution is not None:
            raise ValueError(
                "A state is carried by one equilibrium layer that is called once in a "
                "training step. Received: a second call."
            )
        carried = tree.map_structure(
            lambda leaf, like: tf.cast(leaf, like.dtype), self._carried, state
        )
        carried = StateStructure(state).like(carried, "The carried state")
        first, *_ = tree.flatten(state)
        continues = with_rows_of(first, tf.convert_to_tensor(self._continues))
        return where_rows(continues, nonfinite.usable_state(carried, state), state)

    def keep(self, value: Nest, solution: solvers.Solution) -> None:
        """Stores the result of the layer.

        Args:
            value: Nest like the state. The output.
            solution: The `Solution`.
        """
        self.state = tree.map_structure(tf.stop_gradient, value)
        self.solution = solution
