"""The adjoint equation of a function that was taken apart."""

from collections.abc import Callable

from keras import tree

from deq_keras.linearization import linearize
from deq_keras.splitting import Splitting, moved
from deq_keras.structure import Nest


class AdjointSplitting(Splitting):
    """The parts of y = J^T y + c, J = D W being the Jacobian of f(z) = prox(W z + b).

    With v = D y it is v = D (W^T v + c), a problem of the same kind: D, the derivative
    of prox at W z* + b, is the proximal map of v^T (D^-1 - I) v / 2, and that of alpha
    times it is D / (D + alpha (1 - D)), which is 0 where D is.

    Args:
        splitting: The `Splitting` of f.
        point: Nest z*.
        cotangent: Nest c, like it.
    """

    def __init__(self, splitting: Splitting, point: Nest, cotangent: Nest) -> None:
        slope = splitting.derivative(splitting.affine(point))

        def proximal(state: Nest, alpha: float) -> Nest:
            return tree.map_structure(
                lambda leaf, d: leaf * d / (d + alpha * (1.0 - d)), state, slope
            )

        super().__init__(
            linear=_transposed(splitting.linear, point),
            bias=cotangent,
            resolvent=lambda alpha: _transposed(splitting.resolvent(alpha), point),
            proximal=proximal,
            derivative=lambda _: slope,
        )

    def enter(self, state: Nest, alpha: float) -> Nest:
        # The state y takes the place of W z + b.
        return moved(self.proximal(state, 1.0), state, alpha)

    def leave(self, iterate: Nest, alpha: float) -> Nest:
        return moved(self.proximal(iterate, alpha), iterate, 1.0 / alpha)


def _transposed(linear: Callable[[Nest], Nest], point: Nest) -> Callable[[Nest], Nest]:
    """Returns the transpose of a linear function of nests like `point`."""
    return linearize(linear, point).vjp
