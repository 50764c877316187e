"""Forward-backward splitting."""

from collections.abc import Callable

import keras

from deq_keras.solvers.operator_splitting import OperatorSplitting
from deq_keras.splitting import Splitting, moved
from deq_keras.structure import Nest


@keras.saving.register_keras_serializable(package="deq_keras")
class ForwardBackward(OperatorSplitting):
    """Forward-backward splitting, for the cells of `deq_keras.layers.MonotoneCell`.

        z = prox(u, alpha),    u <- z + alpha (W z + b - z)

    A step costs one product with W. It converges for alpha < 2 m / L^2, where L is the
    norm of I - W and m its strong monotonicity: for small alpha, and then slowly.

    Args:
        alpha: Float > 0. The step size. Defaults to `0.1`.
        max_iter: Positive integer. Budget of evaluations. Defaults to `300`.
        tol: Float >= 0, or `None`. See `FixedPointSolver`; residuals are those of u.
            Defaults to `1e-3`.
        stop_mode: See `FixedPointSolver`. Defaults to `"rel"`.

    Raises:
        ValueError: From `solve`, if the function offers no splitting.

    Example:

    >>> solver = deq_keras.solvers.ForwardBackward(alpha=0.2)
    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.MonotoneDenseCell(8), solver)
    >>> layer(np.ones((2, 3), "float32")).shape
    TensorShape([2, 8])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 4.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        max_iter: int = 300,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
    ) -> None:
        super().__init__(alpha, max_iter, tol, stop_mode)

    def iteration(self, splitting: Splitting) -> Callable[[Nest], Nest]:
        def iterate(iterate: Nest) -> Nest:
            state = splitting.proximal(iterate, self.alpha)
            return moved(state, splitting.affine(state), self.alpha)

        return iterate
