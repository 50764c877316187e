"""Peaceman-Rachford splitting."""

from collections.abc import Callable

import keras
from keras import tree

from deq_keras.solvers.operator_splitting import OperatorSplitting
from deq_keras.splitting import Splitting
from deq_keras.structure import Nest


@keras.saving.register_keras_serializable(package="deq_keras")
class PeacemanRachford(OperatorSplitting):
    """Peaceman-Rachford splitting, for the cells of `deq_keras.layers.MonotoneCell`.

        z = prox(u, alpha),    v = 2 z - u
        u <- 2 (I + alpha (I - W))^-1 (v + alpha b) - v

    It converges for every alpha > 0, and linearly. A step costs one product with the
    inverse, which is computed once a solve.

    Args:
        alpha: Float > 0. The step size. Defaults to `1.0`.
        max_iter: Positive integer. Budget of evaluations. Defaults to `50`.
        tol: Float >= 0, or `None`. See `FixedPointSolver`; residuals are those of u.
            Defaults to `1e-3`.
        stop_mode: See `FixedPointSolver`. Defaults to `"rel"`.

    Raises:
        ValueError: From `solve`, if the function offers no splitting.

    Example:

    >>> cell = deq_keras.layers.MonotoneDenseCell(8)
    >>> layer = deq_keras.layers.DEQ(cell, solver="peaceman_rachford")
    >>> layer(np.ones((2, 3), "float32")).shape
    TensorShape([2, 8])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 4.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        max_iter: int = 50,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
    ) -> None:
        super().__init__(alpha, max_iter, tol, stop_mode)

    def iteration(self, splitting: Splitting) -> Callable[[Nest], Nest]:
        resolvent = splitting.resolvent(self.alpha)

        def iterate(iterate: Nest) -> Nest:
            state = splitting.proximal(iterate, self.alpha)
            reflected = _reflected(iterate, state)
            shifted = tree.map_structure(
                lambda leaf, bias: leaf + self.alpha * bias, reflected, splitting.bias
            )
            return _reflected(reflected, resolvent(shifted))

        return iterate


def _reflected(state: Nest, mirror: Nest) -> Nest:
    return tree.map_structure(lambda leaf, other: 2.0 * other - leaf, state, mirror)
