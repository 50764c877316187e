"""A fixed-point problem taken apart: a monotone affine map and a proximal map."""

from __future__ import annotations

from collections.abc import Callable

from keras import tree

from deq_keras.structure import Nest


class Splitting:
    """The parts of f(z) = prox(W z + b), for solvers by operator splitting.

    I - W is strongly monotone and prox the proximal map of a convex function h, so z is
    a fixed point of f where 0 is in (I - W) z - b + dh(z). States are nests of float32
    or float64 tensors here, whatever the dtype of the cell is.

    Args:
        linear: Function from a state z to W z.
        bias: State b.
        resolvent: Function of a step size alpha > 0 that returns the function from z to
            (I + alpha (I - W))^-1 z. What is costly happens in the first: it is called
            once a solve.
        proximal: Function of a state and alpha: the proximal map of alpha h.
        derivative: Function from a state p to the derivatives of prox there, of each
            entry for its own.
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

    def enter(self, state: Nest, alpha: float) -> Nest:
        """Returns where a splitting starts so that it stays at an equilibrium:
        u = z + alpha (W z + b - z)."""
        return moved(state, self.affine(state), alpha)

    def leave(self, iterate: Nest, alpha: float) -> Nest:
        """Returns the state z = prox(u) of an iterate u of a splitting."""
        return self.proximal(iterate, alpha)


class SplitFunction:
    """A function of states that offers its parts, which it is called like any other.

    Args:
        fn: Function from a state to a state.
        splitting: Its `Splitting`.
    """

    def __init__(self, fn: Callable[[Nest], Nest], splitting: Splitting) -> None:
        self.fn = fn
        self.splitting = splitting

    def __call__(self, state: Nest) -> Nest:
        return self.fn(state)


def moved(state: Nest, target: Nest, share: float) -> Nest:
    """Returns a state that is a share of the way to another, or beyond it."""
    return tree.map_structure(
        lambda leaf, other: leaf + share * (other - leaf), state, target
    )
