"""Creates the weights of layers, such as cells, whose shapes only a trace shows.

1. A cell creates weights in `inject` and in `call`, and its sublayers receive shapes
   that only a trace shows. `trace_and_build` traces both in a graph that never runs.
2. A weight must outlive this graph, and what `build` assigns to it must not become an
   operation of the graph. Therefore each `build` runs eagerly when the trace reaches
   it, as `keras.layers.RNN` builds its cell.
3. Keras infers shapes in a `StatelessScope`, which drops assignments and postpones the
   creation of variables to its end. If an initializer raises there, every later scope
   of the process raises. Therefore each `build` leaves the scope.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from deq_keras.core.internals import (
    flatten_layers,
    function_graph,
    no_stateless_scope,
    own_losses,
)
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium.cell_problem import placeholders


def trace_and_build(
    layer: keras.layers.Layer, function: Callable[[Nest], Nest], specs: Nest
) -> Nest:
    """Traces a function of inputs, and builds the layers that it calls.

    Losses and updates of the trace have no effect.

    Args:
        layer: Layer whose weights to create, with its sublayers.
        function: Function of a nest of tensors that calls `layer`.
        specs: Nest of `tf.TensorSpec` of its argument.

    Returns:
        The result of `function`, a nest of symbolic tensors.

    Raises:
        ValueError: If a weight is assigned in the trace, but not in a `build`.
    """
    num_losses = {one: len(own_losses(one)) for one in flatten_layers(layer)}
    known = {id(weight) for weight in layer.variables}
    with stateful_scope(), _eager_builds(layer, known):
        graph = function_graph("build")
        with graph.as_default():
            outputs = function(placeholders(specs))
        for one in flatten_layers(layer):
            del own_losses(one)[num_losses.get(one, 0) :]
        others = [one for one in layer.variables if id(one) not in known]
        _check_assignments(graph, others)
    return outputs


@contextlib.contextmanager
def stateful_scope() -> Iterator[None]:
    """Leaves the graphs and `keras.StatelessScope`s of the caller, for a scope."""
    with (
        tf.init_scope(),
        tf.variable_creator_scope(_create_eagerly),
        no_stateless_scope(),
    ):
        yield


def _create_eagerly(next_creator: Callable[..., Any], **options: Any) -> Any:
    # A `tf.function` that creates variables is traced a second time. A Keras scope
    # around it, such as the scope of a model with a `tf.function`, would still
    # hold the updates of the first trace, tensors of a graph that is gone.
    if tf.executing_eagerly():
        options["experimental_enable_variable_lifting"] = False
    return next_creator(**options)


@contextlib.contextmanager
def _eager_builds(layer: keras.layers.Layer, known: set[int]) -> Iterator[None]:
    """Runs each `build` of a layer and its sublayers eagerly, for a scope.

    Args:
        layer: The layer.
        known: Set to which the ids of weights are added that a `build` creates.
    """
    originals: dict[keras.layers.Layer, Callable] = {}

    def replace_builds(layer: keras.layers.Layer) -> None:
        for one in flatten_layers(layer):
            if not one.built and one not in originals:
                originals[one] = one.build
                one.build = eager(one, one.build)

    def eager(layer: keras.layers.Layer, build: Callable) -> Callable:
        @functools.wraps(build)
        def build_eagerly(*args: Any, **kwargs: Any) -> None:
            earlier = {id(weight) for weight in layer.variables}
            with stateful_scope():
                build(*args, **kwargs)
            known.update({id(weight) for weight in layer.variables} - earlier)
            replace_builds(layer)  # It may have created sublayers.

        return build_eagerly

    replace_builds(layer)
    try:
        yield
    finally:
        for one, build in originals.items():
            one.build = build


def _check_assignments(graph: Any, variables: list[keras.Variable]) -> None:
    """Raises `ValueError` if a graph assigns values to some variables."""
    handles = {
        id(part.handle): one.path
        for one in variables
        for part in getattr(one.value, "values", [one.value])  # One for each replica.
    }
    for handle, captured in graph.captures:
        path = handles.get(id(handle))
        if path and any(
            user.type.startswith("Assign") for user in captured.consumers()
        ):
            raise ValueError(
                "Values must be assigned to new weights in `build`, because `inject` "
                "and `call` are only traced when a cell is built. Create the weight "
                "and assign its value in the `build` of the cell. Received: "
                f"weight={path}."
            )


def freeze(layer: keras.layers.Layer) -> None:
    """Freezes what layers that are not trainable created when they were built."""
    for one in flatten_layers(layer):
        if not one.trainable:
            # TensorFlow 2.21 ignores an attribute's assignment of its present value.
            one.trainable = True
            one.trainable = False
