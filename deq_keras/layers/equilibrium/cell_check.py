"""What `DEQ` requires of a cell, checked by tracing one application."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from deq_keras.structure import Nest, StateStructure

_ADVICE = (
    "A cell is evaluated until it stops changing, so its `call` must be a pure "
    "function of (state, injection)."
)


def check_signature(cell: keras.layers.Layer) -> None:
    """Raises `ValueError` if `cell` is no layer that takes `(state, injection)`."""
    if not isinstance(cell, keras.layers.Layer):
        raise ValueError(
            "`cell` must be a Keras layer, usually an EquilibriumCell, whose call "
            f"takes (state, injection). Received: cell={cell!r} "
            f"(of type {type(cell).__name__})."
        )
    if not (is_functional(cell) or _takes_injection(cell)):
        raise ValueError(
            "`cell` must be called as `cell(state, injection)`, for it is applied to "
            "its own result again and again, beside what is injected of the inputs. "
            f"Received: cell={type(cell).__name__}, whose call takes "
            f"{inspect.signature(cell.call)}. Use a cell such as DenseCell, write an "
            "EquilibriumCell around the layer, or give a functional model with the two "
            "inputs."
        )


def is_functional(cell: keras.layers.Layer) -> bool:
    """Tells whether `cell` is a functional model of a state and an injection."""
    return (
        isinstance(cell, keras.Model) and len(getattr(cell, "inputs", None) or ()) == 2
    )


def _takes_injection(cell: keras.layers.Layer) -> bool:
    names = []
    for name, parameter in inspect.signature(cell.call).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return True
        if parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(name)
    return len(names) >= 2 and names[1] not in ("training", "mask")


def check_application(
    apply: Callable[[Nest, Nest], Nest],
    cell: keras.layers.Layer,
    state: Nest,
    injection: Nest,
) -> bool:
    """Traces `apply(state, injection)` once; raises `ValueError` if it is no cell.

    Args:
        apply: Function `(state, injection) -> state` that calls `cell`.
        cell: Layer, for its losses and its name.
        state: Nest of tensors.
        injection: Nest of tensors.

    Returns:
        Whether all could be checked: randomness and updates not before the cell has
        its weights.
    """
    source = f"`{type(cell).__name__}.call`"
    structure = StateStructure(state)

    def once() -> None:
        structure.check(apply(structure.template, injection), f"What {source} returns")
        weights = cell.trainable_variables
        if len(cell.losses) > sum(weight.regularizer is not None for weight in weights):
            raise ValueError(
                f"{source} added a loss. {_ADVICE} Add losses on the output of the "
                "DEQ layer instead."
            )

    graph = tf.function(once, autograph=False).get_concrete_function().graph
    if any(getattr(variable, "_value", 0) is None for variable in cell.variables):
        return False  # Symbolic weights are drawn wherever they are read.
    types = {node.op for node in _nodes(graph.as_graph_def())}
    draws = sorted(name for name in types if _is_random(name))
    if draws:
        raise ValueError(
            f"{source} draws random numbers ({', '.join(draws)}). {_ADVICE} Dropout "
            "and noise must stay fixed during a solve: sample masks in `inject` "
            "(see VariationalDropout) and apply them in `call`."
        )
    updates = sorted(name for name in types if _is_update(name))
    if updates:
        raise ValueError(
            f"{source} updates variables ({', '.join(updates)}). {_ADVICE} Layers such "
            "as BatchNormalization belong before or after the DEQ layer."
        )
    return True


def _nodes(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _is_random(name: str) -> bool:
    return "Random" in name or name in ("Multinomial", "StatelessMultinomial")


def _is_update(name: str) -> bool:
    return name.startswith(("Assign", "ResourceScatter", "ResourceApply"))
