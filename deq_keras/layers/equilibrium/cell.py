"""The base of equilibrium cells."""

from typing import Any

import keras
from keras import ops, tree

from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest
from deq_keras.layers.composite_layer import CompositeLayer


@keras.saving.register_keras_serializable(package="deq_keras")
class EquilibriumCell(CompositeLayer):
    """The function f of an equilibrium z* = f(z*, u), which `DEQ` iterates.

    `DEQ` uses a cell as `keras.layers.RNN` uses an RNN cell. Subclasses implement
    `call`. They implement `inject` for all that can be computed once per solve instead
    of per evaluation: projections of the input, normalized weights, dropout masks.

    `call` must be pure, because `DEQ` evaluates it until the state stops changing: no
    randomness, no variable updates, no `add_loss`, no normalization over the batch.
    `DEQ` checks that the state keeps its structure, shapes and dtypes. Create sublayers
    with `dtype=self.dtype_policy`; otherwise mixed precision does not apply to them.

    If the `DEQ` layer has a mask, the state carries it, so that layers such as
    `keras.layers.MultiHeadAttention` ignore padding. If `inject` accepts a `mask`, it
    receives the mask instead, and the cell must apply it.

    Attributes:
        default_gradient: Gradient of a `DEQ` layer of this cell with
            `gradient="auto"`. Defaults to `"auto"`, the default for all cells.
        default_regularizer: The same for its regularizer.
        default_solver: The same for its solver, unless the gradient differentiates
            iterates.
        solver_dtype: String. Dtype in which `call` computes, which limits the tolerance
            of a default solver. Defaults to the compute dtype.

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

    default_gradient: str | Config = "auto"
    default_regularizer: str | Config | None = "auto"
    default_solver: str | Config = "auto"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True  # The state carries the mask of the `DEQ` layer.

    @property
    def solver_dtype(self) -> str:
        return self.compute_dtype

    def inject(self, inputs: Nest, training: bool = False) -> Nest:
        """Returns the injection u: a nest of everything that is constant in a solve.

        It may add losses by `add_loss`, which `call` must not.

        Args:
            inputs: Inputs of the `DEQ` layer.
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
        """Returns f(state, injection).

        Args:
            state: Nest of tensors `(batch, ...)`, like the result of `initial_state`.
            injection: Result of `inject`.

        Returns:
            Nest with the structure, the shapes and the dtypes of `state`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement `call(state, injection)`."
        )

    def lipschitz_constant(self, injection: Nest) -> Any:
        """Returns a Lipschitz constant L of f in the state, or `None` if it is unknown.

        If L is below 1, f has exactly one equilibrium, and
        `deq_keras.diagnostics.certify` bounds the distance of a state to it. The
        constant must be rigorous:

            |f(y, u) - f(z, u)| <= L |y - z|    for all states y and z

        in the Euclidean norm of one sample's whole state: all leaves, all positions.

        Args:
            injection: Result of `inject`.

        Returns:
            Float, scalar tensor, tensor `(batch,)` or `None`. Defaults to `None`.
        """
        del injection

    def get_build_config(self) -> None:
        # `DEQ` creates the weights when it is built. The shape of the state does not
        # determine the weights that `inject` needs.
        return None
