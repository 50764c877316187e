"""The states along a solve that a layer returns."""

from typing import Any

import tensorflow as tf

from deq_keras.core.checks import check_optional_count
from deq_keras.core.problem import with_keras_mask
from deq_keras.core.structure import Nest
from deq_keras.gradients import Equilibrium
from deq_keras.layers.equilibrium.cell_problem import cast_floating
from deq_keras.solvers import Solution


def repeated(state: Nest, num_states: int | None) -> Nest:
    """Returns a nest like the output of a layer, in which each state is `state`."""
    num_states = check_optional_count("num_states", num_states)
    return state if num_states is None else [state] * num_states


def output(layer: Any, found: Equilibrium | Solution, num_states: int | None) -> Nest:
    """Returns the value of a solve or, with `num_states`, the states along it.

    Args:
        layer: The `DEQ` layer.
        found: The `Equilibrium`, or a `Solution` without gradient.
        num_states: The call argument of `DEQ`.

    Raises:
        ValueError: If the gradient of the layer does not support states.
    """
    if num_states is None:
        return found.value
    if not found.states:
        raise ValueError(
            f"{type(layer.gradient).__name__} does not return states along the solve. "
            "Use another gradient, or call the layer without `num_states`. Received: "
            f"{num_states=}, gradient={layer.gradient!r}."
        )
    return [s.value if isinstance(s, Solution) else s for s in found.states]


def cast(layer: Any, value: Nest) -> Nest:
    """Returns a value in the dtype of the layer, if its cell computes in another."""
    if layer.cell.compute_dtype == layer.compute_dtype:
        return value
    return cast_floating(layer.compute_dtype, value)


def with_masks(states: Nest, mask: tf.Tensor | None, num_states: int | None) -> Nest:
    """Attaches the mask of the inputs to each of several states.

    Keras attaches the mask only to the first state.
    """
    if mask is None or num_states is None:
        return states
    return [with_keras_mask(state, mask) for state in states]
