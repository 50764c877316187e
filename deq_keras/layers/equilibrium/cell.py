"""The base of equilibrium cells."""

from typing import Any

import keras
from keras import ops, tree

from deq_keras.core.structure import Nest
from deq_keras.layers.composite_layer import CompositeLayer


@keras.saving.register_keras_serializable(package="deq_keras")
class EquilibriumCell(CompositeLayer):
    """The function f of an equilibrium z* = f(z*, u): what `DEQ` iterates.

    A cell is to `DEQ` what an RNN cell is to `keras.layers.RNN`. Subclasses write
    `call`, and `inject` where anything can be computed once a solve instead of once
    an evaluation: projections of the input, normalized weights, dropout masks.

    `call` must be pure, because it is evaluated until it stops changing: no randomness,
    no variable updates, no `add_loss`, and no normalization over the batch. `DEQ`
    checks that it returns the structure, shapes and dtypes that it was given. Give
    sublayers `dtype=self.dtype_policy`, or mixed precision does not reach them.

    If the `DEQ` layer has a mask, the state carries it, so that layers such as
    `keras.layers.MultiHeadAttention` ignore padding. A cell whose `inject` takes a
    `mask` gets it there instead, and applies it itself.

    Example:

    >>> class TanhCell(deq_keras.layers.EquilibriumCell):
    ...     def __init__(self, units, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.recurrent = keras.layers.Dense(
    ...             units, use_bias=False, dtype=self.dtype_policy)
    ...         self.projection = keras.layers.Dense(units, dtype=self.dtype_policy)
    ...
    ...     def inject(self, inputs, training=False):
    ...         return self.projection(inputs)
    ...
    ...     def call(self, state, injection):
    ...         return keras.ops.tanh(0.5 * self.recurrent(state) + injection)
    >>> deq_keras.layers.DEQ(TanhCell(8))(np.ones((2, 3), "float32")).shape
    TensorShape([2, 8])
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True  # The state carries the mask of the `DEQ` layer.

    def inject(self, inputs: Nest, training: bool = False) -> Nest:
        """Returns the injection u: a nest of everything that is constant in a solve.

        Args:
            inputs: What `DEQ` was called with.
            training: Boolean.
        """
        del training
        return inputs

    def initial_state(self, injection: Nest) -> Nest:
        """Returns the state to start from: a nest of `(batch, ...)` tensors.

        Args:
            injection: Result of `inject`.
        """
        return tree.map_structure(ops.zeros_like, injection)

    def call(self, state: Nest, injection: Nest) -> Nest:
        """Returns f(state, injection), a state of the same structure."""
        raise NotImplementedError(
            f"{type(self).__name__} must implement `call(state, injection)`."
        )

    def lipschitz_constant(self, injection: Nest) -> Any:
        """Returns a Lipschitz constant L of f in the state, or `None` if none is known.

        With L below 1 there is exactly one equilibrium, and
        `FixedPointProblem.distance_bound`, `deq_keras.diagnostics.certify` and exports
        with `certify=True` bound how far a state is from it. The constant must be
        rigorous:

            |f(y, u) - f(z, u)| <= L |y - z|    for all states y and z

        in the Euclidean norm of one sample's whole state: all leaves, all positions.

        Args:
            injection: Result of `inject`.

        Returns:
            Float, scalar tensor, tensor `(batch,)` or `None`. Defaults to `None`.
        """
        del injection

    def jacobian_lipschitz_constant(self, injection: Nest) -> Any:
        """Returns a Lipschitz constant K of df/dz in the state, or `None`.

        `deq_keras.diagnostics.certify` needs it to certify equilibria of a smooth f
        that does not contract. The constant must be rigorous:

            ||df/dz(y, u) - df/dz(z, u)|| <= K |y - z|    for all states y and z

        in the spectral norm, and the norm of `lipschitz_constant`. ReLU and other
        activations with a kink lack such a constant.

        Args:
            injection: Result of `inject`.

        Returns:
            Float, scalar tensor, tensor `(batch,)` or `None`. Defaults to `None`.
        """
        del injection

    def get_build_config(self) -> None:
        # The weights are created when `DEQ` is built; shapes of the state alone would
        # not do for what `inject` needs.
        return None
