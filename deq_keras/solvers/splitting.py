"""The parts of a monotone fixed-point problem: an affine map and a proximal map."""

from __future__ import annotations

from collections.abc import Callable

from keras import tree

from deq_keras.core.linearization import linearize
from deq_keras.core.structure import Nest, at_least_float32, interpolate


class Splitting:
    """The parts of f(z) = prox(W z + b), for solvers by operator splitting.

    I - W is strongly monotone and prox is the proximal map of a convex function h, so z
    is a fixed point of f if and only if 0 is in (I - W) z - b + dh(z). States are nests
    of float32 or float64 tensors, regardless of the dtype of the cell.

    Args:
        linear: Function from a state z to W z.
        bias: State b.
        resolvent: Function of a step size alpha > 0 that returns the function from z to
            (I + alpha (I - W))^-1 z. It is called once per solve and does the costly
            part.
        proximal: Function of a state and alpha: the proximal map of alpha h.
        derivative: Function from a state p to the elementwise derivatives of prox at p.
    """

    def __init__(
        self,
        linear: Callable[[Nest], Nest],
        bias: Nest,
        resolvent: Callable[[float], Callable[[Nest], Nest]],
        proximal: Callable[[Nest, float], Nest],
        derivative: Callable[[Nest], Nest],
    ) -> None:
        self.linear = linear
        self.bias = bias
        self.resolvent = resolvent
        self.proximal = proximal
        self.derivative = derivative

    def affine(self, state: Nest) -> Nest:
        """Returns W z + b."""
        return tree.map_structure(
            lambda product, bias: product + bias, self.linear(state), self.bias
        )

    def to_auxiliary(self, state: Nest, alpha: float) -> Nest:
        """Returns the iterate u = z + alpha (W z + b - z) of a state z.

        The iterate of an equilibrium is a fixed point of the splitting.
        """
        return interpolate(state, self.affine(state), alpha)

    def from_auxiliary(self, iterate: Nest, alpha: float) -> Nest:
        """Returns the state z = prox(u) of an iterate u."""
        return self.proximal(iterate, alpha)

    def adjoint(self, point: Nest, cotangent: Nest) -> Splitting:
        """Returns the parts of y = J^T y + c, with the Jacobian J of f at a point.

        Args:
            point: State z*.
            cotangent: Nest c, like it.
        """
        point = tree.map_structure(at_least_float32, point)
        return AdjointSplitting(self, point, cotangent)


class AdjointSplitting(Splitting):
    """The parts of y = J^T y + c with the Jacobian J = D W of f(z) = prox(W z + b).

    With v = D y the equation is v = D (W^T v + c), which has the same form: D, the
    derivative of prox at W z* + b, is the proximal map of v^T (D^-1 - I) v / 2. The
    proximal map of alpha times that function is D / (D + alpha (1 - D)), or 0 if D = 0.

    Args:
        splitting: The `Splitting` of f.
        point: Nest z*.
        cotangent: Nest c, like it.
    """

    def __init__(self, splitting: Splitting, point: Nest, cotangent: Nest) -> None:
        slope = splitting.derivative(splitting.affine(point))  # The diagonal of D.

        def transpose(linear: Callable[[Nest], Nest]) -> Callable[[Nest], Nest]:
            return linearize(linear, point).vjp

        super().__init__(
            linear=transpose(splitting.linear),
            bias=cotangent,
            # The transpose of the resolvent of W is the resolvent of W^T.
            resolvent=lambda alpha: transpose(splitting.resolvent(alpha)),
            proximal=lambda state, alpha: tree.map_structure(
                lambda leaf, d: leaf * d / (d + alpha * (1.0 - d)), state, slope
            ),
            derivative=lambda _: slope,
        )

    def to_auxiliary(self, state: Nest, alpha: float) -> Nest:
        # The state y takes the place of W z + b.
        return interpolate(self.proximal(state, 1.0), state, alpha)

    def from_auxiliary(self, iterate: Nest, alpha: float) -> Nest:
        return interpolate(self.proximal(iterate, alpha), iterate, 1.0 / alpha)
