"""Base class of cells with a unique equilibrium by construction."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops, tree

from deq_keras import proximal
from deq_keras.core.checks import check_positive
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.equilibrium import CellFunction, EquilibriumCell, declares
from deq_keras.solvers import (
    FixedPointProblem,
    OperatorSplitting,
    SolveRequest,
    Splitting,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class MonotoneCell(EquilibriumCell):
    """Base class of cells f(z, x) = s(W z + U x + b) with a monotone operator I - W.

    ```
    W = (1 - m) I - A^T A + B - B^T    so that    z^T (I - W) z >= m |z|^2
    ```

    For all values of the weights, there is exactly one equilibrium, which is Lipschitz
    continuous in the inputs with the constant `lipschitz_bound`. f itself can expand.
    Operator splitting solvers (`"peaceman_rachford"`, `"forward_backward"`) converge
    anyway. Anderson and other solvers may not.

    All computations use float32 or float64, independent of the compute dtype. Only the
    input and output states of the cell have the compute dtype.

    Subclasses implement `inject`, which returns a dict of `"bias"`, the state U x + b,
    and `"operator"`, a nest of tensors that define W; `linear`; `resolvent`;
    `strong_monotonicity`; and `input_norm`. A subclass that overrides what another
    method describes must override that method, too. Otherwise, the cell has no
    splitting (`call` or `linear` without `resolvent`) or no bounds (`inject`, `linear`
    or `constrain` without `strong_monotonicity`).

    Args:
        m: Positive float. Strong monotonicity of I - W. With large values, solvers
            converge fast, and the layer is smooth. Defaults to `1.0`.
        activation: The function s: `"relu"`, `"sigmoid"`, `"softplus"`, `"tanh"`, or a
            `deq_keras.proximal.ProximalMap`. Defaults to `"relu"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks".
    """

    def __init__(self, m: float = 1.0, activation: Any = "relu", **kwargs: Any) -> None:
        # With autocast, Keras would cast the injection to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        self.m = check_positive("m", m)
        self.activation = proximal.get(activation)

    @property
    def solver_dtype(self) -> str:
        """Returns the dtype in which W and its resolvent are computed, a string."""
        return wide_dtype(self.compute_dtype)

    # The defaults hold as long as `operator_splitting` describes the cell.

    @property
    def default_gradient(self) -> Any:  # type: ignore[override]
        return "implicit" if declares(self, "operator_splitting") else "auto"

    @property
    def default_solver(self) -> Any:  # type: ignore[override]
        # It converges for every monotone cell.
        return "peaceman_rachford" if declares(self, "operator_splitting") else "auto"

    @property
    def default_regularizer(self) -> Any:  # type: ignore[override]
        return None if declares(self, "operator_splitting") else "auto"

    def linear(self, state: Any, operator: Any) -> Any:
        """Returns W z.

        Args:
            state: State z of `solver_dtype`.
            operator: The `"operator"` of the injection.
        """
        raise NotImplementedError

    def resolvent(self, operator: Any, alpha: float) -> Callable[[Any], Any]:
        """Returns the function from z to (I + alpha (I - W))^-1 z.

        Args:
            operator: The `"operator"` of the injection.
            alpha: Positive float. Step size.
        """
        raise NotImplementedError

    def input_norm(self) -> float:
        """Returns the norm of U, a float."""
        raise NotImplementedError

    def strong_monotonicity(self) -> Any:
        """Returns the largest m for which z^T (I - W) z >= m |z|^2 is known to hold."""
        raise NotImplementedError

    def _known_monotonicity(self) -> Any:
        return self.strong_monotonicity() if declares(self, "distance_bound") else 0.0

    def constrain(self, leaf: Any) -> Any:
        """Returns a leaf of the state with zeros where the state has to be zero."""
        return leaf

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return tree.map_structure(
            lambda leaf: ops.cast(ops.zeros_like(leaf), self.compute_dtype),
            injection["bias"],
        )

    def call(self, state: Any, injection: Any) -> Any:
        parts = self.operator_splitting(injection)
        value = parts.proximal(parts.affine(self._in_solver_dtype(state)), 1.0)
        return tree.map_structure(
            lambda leaf, like: ops.cast(leaf, like.dtype), value, state
        )

    def operator_splitting(self, injection: Any) -> Splitting:
        """Returns the `deq_keras.solvers.Splitting` of f for an injection."""
        operator = injection["operator"]
        return Splitting(
            linear=lambda state: self.linear(state, operator),
            bias=injection["bias"],
            resolvent=lambda alpha: self.resolvent(operator, alpha),
            proximal=lambda state, alpha: tree.map_structure(
                lambda leaf: self.constrain(self.activation.proximal(leaf, alpha)),
                state,
            ),
            derivative=lambda state: tree.map_structure(
                lambda leaf: self.constrain(self.activation.derivative(leaf)), state
            ),
        )

    def distance_bound(self, state: Any, injection: Any) -> Any:
        """Returns a bound on the distance of a state to the equilibrium z*.

        For z' = f(z), W (z' - z) is the residual of the monotone inclusion, so that

            |z' - z*| <= |W (z' - z)| / m    and    |z - z*| <= |z' - z| + |z' - z*|

        `deq_keras.diagnostics.certify` uses this bound.

        Args:
            state: State z, from any solver.
            injection: Result of `inject`.

        Returns:
            Float tensor `(batch,)`. Bound on |z - z*|, up to rounding. Infinite if
            `strong_monotonicity` is not positive, or describes another cell.
        """
        parts = self.operator_splitting(injection)
        state = self._in_solver_dtype(state)
        value = parts.proximal(parts.affine(state), 1.0)
        step = tree.map_structure(ops.subtract, value, state)
        m = self._known_monotonicity()
        bound = _norm(step) + _norm(parts.linear(step)) / m
        return ops.where(m > 0, bound, float("inf"))

    def lipschitz_bound(self) -> float:
        """Returns |U| / m, a Lipschitz constant of the equilibrium in the inputs.

        Returns:
            Float. Infinite as for `distance_bound`.

        Reference:

        - Pabbaraju, Winston and Kolter (2021), "Estimating Lipschitz constants of
          monotone deep equilibrium models".
        """
        m = float(self._known_monotonicity())
        return self.input_norm() / m if m > 0 else float("inf")

    def tuned(self, solver: OperatorSplitting, inputs: Any) -> OperatorSplitting:
        """Returns a splitting solver with the best step size for some inputs.

        Args:
            solver: A `PeacemanRachford` or a `ForwardBackward`.
            inputs: Inputs of the layer, a few samples.

        Returns:
            A solver of the same class; see `deq_keras.solvers.OperatorSplitting.tuned`.
        """
        injection = self.inject(ops.convert_to_tensor(inputs, self.compute_dtype))
        problem = FixedPointProblem(CellFunction(self), injection)
        return solver.tuned(problem, SolveRequest(self.initial_state(injection)))

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, MonotoneCell)}

    def _in_solver_dtype(self, nest: Any) -> Any:
        return tree.map_structure(lambda leaf: ops.cast(leaf, self.solver_dtype), nest)


def _norm(state: Any) -> Any:
    """Returns the norm of each sample, over all leaves."""
    squares = [
        ops.sum(ops.square(leaf), axis=tuple(range(1, len(leaf.shape))))
        for leaf in tree.flatten(state)
    ]
    return ops.sqrt(sum(squares))
