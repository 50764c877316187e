"""The equilibrium layer of a model, and the inputs that the layer receives."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.internals import flatten_layers, set_keras_mask
from deq_keras.core.linearization import Linearization
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.solvers import Solution, SolveRequest

# Packages whose functional and sequential models compute what their graph says.
_CALL_THEIR_LAYERS = ("keras", "keras_hub", "deq_keras")


class ModelParts(NamedTuple):
    """A model split at its `DEQ` layer, with shared weights.

    Attributes:
        encode: Function from the inputs of the model to the inputs of the layer.
        layer: The `DEQ` layer.
        head: Function from an output of the layer to the outputs of the model.
    """

    encode: Callable[[Nest], Nest]
    layer: Any
    head: Callable[[Nest], Nest]


def split_model(model: Any) -> ModelParts:
    """Splits a model at its `DEQ` layer, for example to try solvers and budgets.

    Args:
        model: Functional or sequential model with one `DEQ` layer, which may be in a
            nested model; or the layer itself, for which `encode` and `head` are
            identities.

    Returns:
        A `ModelParts`.

    Raises:
        ValueError: If the number of `DEQ` layers is not one, the model is of another
            kind, or its outputs depend on more than the output of the layer.

    Example:

    >>> model = keras.Sequential([
    ...     keras.Input((3,)),
    ...     deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8)),
    ...     keras.layers.Dense(2),
    ... ])
    >>> encode, layer, head = deq_keras.diagnostics.split_model(model)
    >>> request = deq_keras.solvers.SolveRequest(max_iter=5)
    >>> solution = layer.solve(encode(np.ones((4, 3), "float32")), request)
    >>> tuple(head(solution.value).shape), int(solution.batch_evaluations) <= 5
    ((4, 2), True)
    """
    return ModelParts(encoder(model), single_layer(model), head(model))


def single_layer(model: Any) -> Any:
    """Returns the `DEQ` layer of a model, or the layer itself.

    Args:
        model: `DEQ` layer, or a model or layer that contains one.

    Raises:
        ValueError: If the model does not have exactly one.
    """
    found = equilibrium_layers(model) if isinstance(model, keras.layers.Layer) else []
    if len(found) != 1:
        raise ValueError(
            "Expected a DEQ layer, or a model with one DEQ layer. Pass the layer "
            f"itself, and its inputs. Received: {model!r} (of type "
            f"{type(model).__name__}) with {len(found)} DEQ layers."
        )
    return found[0]


def encoder(model: Any) -> Callable[[Nest], Nest]:
    """Returns the function from a model's inputs to its `DEQ` layer's inputs.

    Args:
        model: `DEQ` layer, or a functional or sequential model with one.

    Raises:
        ValueError: If the layer is in a model of another kind.
    """
    layer = single_layer(model)
    with _functional_only(model, "inputs of a DEQ layer"):
        levels = _levels(model, layer)
        for name in ("initial_state", "max_iter", "tol") if levels else ():
            if _called_with(levels[-1][1], name) is not None:
                raise ValueError(f"The model calls the layer with `{name}`")
        arguments = [_called_with(node, "inputs") for _, node in levels]
        mask = _called_with(levels[-1][1], "mask") if levels else None
        if mask is not None:
            arguments[-1] = (arguments[-1], mask)
        models = [
            keras.Model(_ends(outer)[0], argument)
            for (outer, _), argument in zip(levels, arguments, strict=True)
        ]

    def encode(inputs: Nest) -> Nest:
        encoded = functools.reduce(lambda x, one: one(x), models, inputs)
        if mask is None:
            return encoded
        # Attach the mask of the call to the inputs, as Keras does.
        encoded, encoded_mask = encoded
        encoded = tree.map_structure(tf.identity, encoded)
        set_keras_mask(tree.flatten(encoded)[0], encoded_mask)
        return encoded

    return encode


def head(model: Any) -> Callable[[Nest], Nest]:
    """Returns the function from the `DEQ` layer's output to the model's outputs.

    Args:
        model: See `encoder`.

    Raises:
        ValueError: If the layer is in a model of another kind, or the outputs of the
            model do not depend on the output of the layer alone.
    """
    layer = single_layer(model)
    with _functional_only(model, "outputs of a model from the output of its DEQ layer"):
        models = [
            keras.Model(node.output_tensors, _copies(_ends(outer)[1], node))
            for outer, node in reversed(_levels(model, layer))
        ]
    return lambda state: functools.reduce(
        lambda x, one: one(tree.flatten(x)), models, state
    )


@contextlib.contextmanager
def _functional_only(model: Any, results: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, LookupError, StopIteration, ValueError) as error:
        raise ValueError(
            f"The {results} can be computed only in functional and sequential models "
            "that are built, call the layer once, with `inputs` and `mask` only, and "
            "in which nothing leads around the layer, such as a mask that a later "
            "layer uses. Pass the layer itself, and its inputs. "
            f"Received: {type(model).__name__} {model.name!r}. Error: {error}"
        ) from error


def _copies(outputs: Nest, node: Any) -> Nest:
    """Returns outputs of a model, with copies of the tensors that a call returned.

    Keras does not make a model with an output that is one of its inputs.
    """
    inputs = {id(tensor) for tensor in node.output_tensors}

    def copy(tensor: Any) -> Any:
        if id(tensor) not in inputs:
            return tensor
        return keras.layers.Identity(dtype=tensor.dtype)(tensor)

    return tree.map_structure(copy, outputs)


def _levels(model: Any, layer: Any) -> list[tuple[Any, Any]]:
    """Returns pairs of a model and the call in it that leads to a layer, from the
    outermost model to the innermost."""
    # A nested model is a single call in the graph of the outer model. Descend from
    # model to model until the call is the layer's own.
    levels = []
    while model is not layer:
        package = type(model).call.__module__.partition(".")[0]
        if "call" in vars(model) or package not in _CALL_THEIR_LAYERS:
            raise ValueError(f"{type(model).__name__} has a `call` of its own")
        inner = next(one for one in model.layers if layer in flatten_layers(one))
        graph = model._functional if isinstance(model, keras.Sequential) else model
        calls = {node for nodes in graph._nodes_by_depth.values() for node in nodes}
        # `inner.input` of a functional model would be its own placeholder, and other
        # models may call it, too.
        nodes = [node for node in inner._inbound_nodes if node in calls]
        if len(nodes) > 1:
            raise ValueError(f"The model calls {inner.name!r} {len(nodes)} times")
        levels.append((model, *nodes))
        model = inner
    return levels


def _called_with(node: Any, name: str) -> Any:
    """Returns an argument of a call by its name; `inputs` is the first one."""
    names = ("inputs", "initial_state", "mask", "training", "max_iter", "tol")
    given = dict(zip(names, node.arguments.args, strict=False))
    found = {**given, **node.arguments.kwargs}.get(name)
    # The only mask of several inputs is in a nest of `None`.
    leaves = [leaf for leaf in tree.flatten(found) if leaf is not None]
    return leaves[0] if name == "mask" and len(leaves) == 1 else found


def _ends(model: Any) -> tuple[Nest, Nest]:
    """Returns the symbolic inputs and outputs of a functional or sequential model."""
    if isinstance(model, keras.Sequential):
        return model.inputs[0], model.outputs[0]
    return model.input, model.output


def linearize_solution(
    layer: Any, inputs: Nest, max_iter: int | None = None, mask: Nest = None
) -> tuple[Solution, Linearization]:
    """Solves a `DEQ` layer and linearizes f at the solution.

    Products with the Jacobian are NaN for samples with non-finite inputs.

    Args:
        layer: `DEQ` layer.
        inputs: Its inputs.
        max_iter: Budget of the solve. `None`: the budget of the layer.
        mask: Their mask. `None`: the mask that Keras attached to them.
    """
    problem = layer.problem(inputs, mask)
    request = layer.request(problem, SolveRequest(max_iter=max_iter))
    solution = layer.solver.solve(problem, request)
    linearization = problem.linearize(solution.point)
    return solution, nonfinite.undefined_linearization(linearization, problem.is_usable)
