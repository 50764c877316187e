"""The equilibrium layer of a model, and the inputs that the layer receives."""

from typing import Any

import keras
from keras import tree

from deq_keras.core.linearization import Linearization
from deq_keras.core.structure import Nest
from deq_keras.solvers import Solution, SolveRequest


def single_layer(model: Any) -> Any:
    """Returns the `DEQ` layer of a model, or the layer itself.

    Args:
        model: `DEQ` layer, or a model or layer that contains one.

    Raises:
        ValueError: If the model does not have exactly one.
    """
    layers = model._flatten_layers() if isinstance(model, keras.layers.Layer) else ()
    # This package cannot import `DEQ`.
    found = [
        layer
        for layer in layers
        if all(hasattr(layer, name) for name in ("cell", "solver", "gradient"))
    ]
    if len(found) != 1:
        raise ValueError(
            "Expected a DEQ layer, or a model with one DEQ layer. Pass the layer "
            f"itself, and its inputs. Received: {model!r} (of type "
            f"{type(model).__name__}) with {len(found)} DEQ layers."
        )
    return found[0]


def layer_inputs(model: Any, inputs: Nest) -> Nest:
    """Returns the inputs that the `DEQ` layer of a model receives.

    Args:
        model: `DEQ` layer, or a functional or sequential model with one.
        inputs: Inputs of `model`.

    Raises:
        ValueError: If the layer is in a model of another kind.
    """
    layer = single_layer(model)
    while model is not layer:
        try:
            inner = next(one for one in model.layers if layer in one._flatten_layers())
            is_sequential = isinstance(model, keras.Sequential)
            own = model.inputs[0] if is_sequential else model.input
            # `inner.input` of a functional model would be its own placeholder.
            received = inner._inbound_nodes[0].arguments.args[0]
            inputs = keras.Model(own, received)(inputs)
        except (AttributeError, LookupError, StopIteration, ValueError) as error:
            raise ValueError(
                "The inputs of a DEQ layer can be computed only in functional and "
                "sequential models that are built. Pass the layer itself, and its "
                f"inputs. Received: {type(model).__name__} {model.name!r}. "
                f"Error: {error}"
            ) from error
        model = inner
    return inputs


def linearized_solution(
    layer: Any, inputs: Nest, max_iter: int | None = None
) -> tuple[Solution, Linearization]:
    """Solves a `DEQ` layer and linearizes f at the solution.

    Args:
        layer: `DEQ` layer.
        inputs: Its inputs. A mask that Keras attached to them is used.
        max_iter: Budget of the solve. `None`: the budget of the layer.
    """
    mask = tree.map_structure(lambda leaf: getattr(leaf, "_keras_mask", None), inputs)
    solution = layer.solve(inputs, SolveRequest(max_iter=max_iter), mask=mask)
    return solution, layer.problem(inputs, mask).linearize(solution.point)
