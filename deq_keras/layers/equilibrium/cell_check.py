"""Checks whether `DEQ` can use a cell, by tracing one application."""

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import custom_gradient, graphs
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest, StateStructure, named_leaves
from deq_keras.layers.equilibrium.cell_build import trace_and_build
from deq_keras.layers.equilibrium.cell_problem import (
    CellFunction,
    cell_state,
    is_functional,
    is_rnn_cell,
)
from deq_keras.layers.equilibrium.solve_scope import SolveScope
from deq_keras.solvers import FixedPointSolver

_ADVICE = (
    "A cell is evaluated until it stops changing, so its `call` must be a pure "
    "function of (state, injection)."
)
# Matches messages of TensorFlow about operands of different dtypes.
_MIXED_DTYPES = r"has type \w+ that does not match type"
# Matches messages of TensorFlow and Keras about operands whose shapes do not fit.
_MISFIT = r"dimension|incompatible|broadcast|shapes? (must|of|do|are|\()"


def check_signature(cell: keras.layers.Layer) -> None:
    """Raises `ValueError` unless `cell` is a layer called with `(state, injection)`."""
    if not isinstance(cell, keras.layers.Layer):
        raise ValueError(
            "`cell` must be a Keras layer, usually an EquilibriumCell, whose call "
            f"takes (state, injection). Received: cell={cell!r} "
            f"(of type {type(cell).__name__})."
        )
    if is_rnn_cell(cell) or not (is_functional(cell) or _takes_injection(cell)):
        raise ValueError(
            "`cell` must be called as `cell(state, injection)`: a DEQ layer applies it "
            "repeatedly to its own result, with the injected inputs. "
            f"Received: cell={type(cell).__name__}, whose call takes "
            f"{inspect.signature(cell.call)}. Use `deq_keras.layers.cell_from(layer)`, "
            "a cell such as DenseCell, an EquilibriumCell of your own, or a functional "
            "model with a list of the two inputs."
        )
    _check_sublayers(cell)


def _check_sublayers(cell: keras.layers.Layer) -> None:
    """Raises `ValueError` if a cell contains an equilibrium layer.

    It would update its metrics and its regularization loss at every evaluation. This
    module cannot import `DEQ`, so it looks for the attributes of `DEQ`.
    """
    for layer in cell._flatten_layers(include_self=False):
        if all(hasattr(layer, name) for name in ("cell", "solver", "gradient")):
            raise ValueError(
                "A cell must not contain a DEQ layer: the inner equilibrium would be "
                "solved at every evaluation of the outer one, with metrics and losses "
                "that a cell must not have. Write one cell whose state is a dict of "
                "both states, which one solve finds together, or use two DEQ layers in "
                f"sequence. Received: cell={type(cell).__name__} with the sublayer "
                f"{layer.name!r} (of type {type(layer).__name__})."
            )


def check_dtype(cell: keras.layers.Layer, compute_dtype: str) -> None:
    """Raises `ValueError` if a cell computes in another dtype than its layer."""
    if cell.compute_dtype != compute_dtype:
        raise ValueError(
            "A DEQ layer and its cell must have the same compute dtype. Pass `dtype` "
            "to the cell only; the layer then uses the same. Received: a layer that "
            f"computes in {compute_dtype}, "
            f"cell={type(cell).__name__} that computes in {cell.compute_dtype}."
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


def apply_once(
    apply: Callable[[Nest, Nest], Nest],
    cell: keras.layers.Layer,
    state: Nest,
    injection: Nest,
) -> Nest:
    """Returns `apply(state, injection)`; explains how to fix shapes and dtypes.

    Args:
        apply: Function `(state, injection) -> state` that calls `cell`.
        cell: Layer.
        state: Nest of tensors.
        injection: Nest of tensors.

    Raises:
        ValueError: If an operation in the cell fails because of a shape or a dtype.
    """
    try:
        return apply(state, injection)
    except TypeError as error:
        if not re.search(_MIXED_DTYPES, str(error)):
            raise
        raise ValueError(
            f"`{type(cell).__name__}.call` failed at its first evaluation, because "
            "dtypes do not fit. Create each sublayer with `dtype=self.dtype_policy`, "
            "so that it computes in the dtype of the cell. "
            f"Received: a cell that computes in {cell.compute_dtype}. "
            f"Error: {_message(error)}"
        ) from error
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        cause = _message(error)
        if not re.search(_MISFIT, cause, re.IGNORECASE):
            raise
        raise ValueError(
            f"`{type(cell).__name__}.call` failed at its first evaluation, because "
            "shapes do not fit. It must return a state of the shapes that it is given. "
            "They are the shapes of `initial_state(injection)`, by default those of "
            "what `inject` returns, by default the inputs. If the state has another "
            "width than the inputs, project the inputs in `inject`, for example with a "
            "Dense layer. "
            f"Received: state={_shapes(state)}, injection={_shapes(injection)}. "
            f"Error: {cause}"
        ) from error


def _message(error: Exception) -> str:
    """Returns the message of an error, without the text that Keras adds to it."""
    emphasized = re.search(r"\x1b\[1m(.*?)\x1b\[0m", str(error), re.DOTALL)
    return emphasized.group(1) if emphasized else str(error)


def _shapes(nest: Nest) -> Any:
    return tree.map_structure(lambda leaf: str(tuple(leaf.shape)), nest)


def check_application(
    apply: Callable[[Nest, Nest], Nest],
    cell: keras.layers.Layer,
    state: Nest,
    injection: Nest,
    differentiates_jacobian: bool = False,
) -> bool:
    """Traces `apply(state, injection)` once and checks the contract of a cell.

    Args:
        apply: Function `(state, injection) -> state` that calls `cell`.
        cell: Layer, for its losses and its name.
        state: Nest of tensors.
        injection: Nest of tensors.
        differentiates_jacobian: Boolean. Whether a regularizer differentiates products
            with the Jacobian of the cell.

    Returns:
        Boolean. Whether all checks ran. Checks of randomness and updates need a cell
        with weights.
    """
    _check_sublayers(cell)
    source = f"`{type(cell).__name__}.call`"
    structure = StateStructure(state)
    # `inject` may have added losses.
    num_losses = len(cell.losses)
    graph = tf.__internal__.FuncGraph("check")
    with graph.as_default():
        value = apply_once(apply, cell, structure.template, injection)
        structure.check(value, f"What {source} returns")
    if len(cell.losses) > num_losses:
        raise ValueError(
            f"{source} added a loss. {_ADVICE} Add losses on the output of the "
            "DEQ layer instead, or in `inject`."
        )
    if any(getattr(variable, "_value", 0) is None for variable in cell.variables):
        return False  # Each read of a symbolic weight would draw random numbers.
    nodes = list(graphs.nodes(graph))
    if differentiates_jacobian and any(map(_is_of_moments, nodes)):
        _warn_of_moments(source)
    types = {node.op for node in nodes}
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
            "as BatchNormalization belong before or after the DEQ layer. "
            "SpectrallyNormalizedDense takes the kernel that `inject` computes by "
            "`normalized_kernel(training)`."
        )
    return True


def _is_of_moments(node: Any) -> bool:
    return node.op == "StopGradient" and "moments" in node.name


def _warn_of_moments(source: str) -> None:
    warnings.warn(
        f"{source} normalizes with `tf.nn.moments`, as LayerNormalization and "
        "GroupNormalization of Keras do. It stops the gradient of the mean within the "
        "variance, so that the gradient of a Jacobian regularizer is inexact. Use "
        "`deq_keras.layers.LayerNormalization` or "
        "`deq_keras.layers.GroupNormalization` in their place.",
        stacklevel=2,
    )


def _is_random(name: str) -> bool:
    return "Random" in name or name in ("Multinomial", "StatelessMultinomial")


def _is_update(name: str) -> bool:
    return name.startswith(("Assign", "ResourceScatter", "ResourceApply"))


def build_cell(layer: Any, inputs_shape: Nest) -> Nest:
    """Creates the weights of a layer's cell and checks the cell.

    Args:
        layer: The `DEQ` layer.
        inputs_shape: Nest of shapes of its inputs.

    Returns:
        The initial state, a nest of symbolic tensors.
    """
    cell = layer.cell

    def trace(inputs: Nest) -> Nest:
        injection = layer.inject(inputs)
        _check_injection(cell, injection)
        state = cell_state(cell, injection)
        check_cell(layer, state, injection, training=False)
        return state

    return trace_and_build(cell, trace, layer._input_specs(inputs_shape))


def _check_injection(cell: keras.layers.Layer, injection: Nest) -> None:
    """Raises `ValueError` if a leaf of an injection cannot be a tensor."""
    for name, leaf in named_leaves(injection, "injection"):
        if leaf is None or isinstance(leaf, str | bool | int | float):
            raise ValueError(
                f"`{type(cell).__name__}.inject` must return a nest of tensors. Leave "
                "out what is not used, and keep options as attributes of the cell. "
                f"Received: {name}={leaf!r}."
            )


def check_cell(layer: Any, state: Nest, injection: Nest, training: bool) -> None:
    """Checks the cell of a layer, once per mode.

    Args:
        layer: The `DEQ` layer.
        state: Nest of tensors.
        injection: Nest of tensors.
        training: Boolean.
    """
    regularizer = layer.regularizer if training else None
    twice = regularizer is not None and regularizer.differentiates_jacobian
    if (training, twice) in layer._checked_modes:
        return
    function = CellFunction(layer.cell)
    if check_application(function, layer.cell, state, injection, twice):
        layer._checked_modes.add((training, twice))


def check_noise(solver: FixedPointSolver, problem: FixedPointProblem) -> None:
    """Raises `ValueError` if the noise of a solver would reach padding."""
    if problem.mask is not None and solver.noise > 0:
        raise ValueError(
            "The noise of a solver would reach the positions that are padding. Use "
            "samples without padding, or a solver without noise. Received: a mask "
            f"and solver={solver!r}."
        )


def check_forward_mode(
    gradient: Any, problem: FixedPointProblem, training: bool | None
) -> None:
    """Raises `NotImplementedError` if a `tf.autodiff.ForwardAccumulator` watches a call
    of the layer that it cannot differentiate.

    Args:
        gradient: The gradient of the layer.
        problem: A `FixedPointProblem` of the layer.
        training: Boolean. Whether the layer is called in training.
    """
    if training or SolveScope.entered() or not gradient.has_tangent:
        custom_gradient.check_forward_mode(problem.sources, type(gradient).__name__)
