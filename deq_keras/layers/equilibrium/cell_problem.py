"""The parts of a layer's fixed-point problem: its cell, rows and mask."""

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core.internals import flatten_layers, function_graph
from deq_keras.core.structure import Nest
from deq_keras.solvers import FixedPointFunction, Splitting


def is_functional(cell: keras.layers.Layer) -> bool:
    """Returns whether `cell` is a functional model of a state and an injection."""
    inputs = getattr(cell, "inputs", None) or ()
    if not isinstance(cell, keras.Model) or len(inputs) != 2:
        return False
    return isinstance(cell.input, list | tuple)  # A dict does not tell the state.


def is_rnn_cell(cell: keras.layers.Layer) -> bool:
    """Returns whether `cell` is called with `(inputs, states)`."""
    return hasattr(cell, "state_size") and not isinstance(cell, keras.layers.RNN)


def equilibrium_layers(layer: keras.layers.Layer) -> list[Any]:
    """Returns the `DEQ` layers in a layer, itself included.

    The modules that `DEQ` consists of cannot import it, hence its attribute.
    """
    layers = flatten_layers(layer)
    return [one for one in layers if getattr(one, "is_equilibrium", False)]


_CALL = ["call", "__call__"]
# The statements of a cell about its function, and for each statement the methods that
# imply it and the methods that those describe.
_PREMISES = {
    "lipschitz_constant": {"lipschitz_constant": _CALL},
    "operator_splitting": {"operator_splitting": _CALL, "resolvent": ["linear"]},
    "distance_bound": {
        "distance_bound": [*_CALL, "operator_splitting"],
        "strong_monotonicity": ["inject", "linear", "constrain"],
    },
}


def declares(cell: keras.layers.Layer, name: str) -> bool:
    """Returns whether a cell makes a statement about the function that it computes.

    A subclass that overrides `call` inherits methods that describe another function.
    Therefore no class below the one that defines the statement may override what it
    describes.

    Args:
        cell: The cell of a `DEQ` layer.
        name: String. Method that makes the statement, a key of `_PREMISES`.
    """
    scopes = [vars(cell), *map(vars, type(cell).__mro__)]

    def depth(method: str) -> int:
        found = (i for i, scope in enumerate(scopes) if method in scope)
        return next(found, len(scopes))

    return depth(name) < len(scopes) and all(
        depth(method) <= min(map(depth, described))
        for method, described in _PREMISES[name].items()
        if depth(method) < len(scopes)
    )


class CellFunction(FixedPointFunction):
    """The function `(state, injection) -> state` of a cell.

    It does not keep the cell alive: gradient functions of a traced graph refer to it,
    and TensorFlow never frees the graph of a Keras training step.

    Args:
        cell: The cell of a `DEQ` layer.
    """

    def __init__(self, cell: keras.layers.Layer) -> None:
        self._cell = weakref.ref(cell)
        self._is_functional = is_functional(cell)

    @property
    def cell(self) -> keras.layers.Layer:
        cell = self._cell()
        if cell is None:
            raise ValueError(
                "The gradient of a compiled function needs the cell of its DEQ layer, "
                "and the layer was deleted. Keep a reference to the model for as long "
                "as the function is differentiated."
            )
        return cell

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables that the function reads."""
        return (self._cell() or self.cell).variables

    def __call__(self, state: Nest, injection: Nest) -> Nest:
        cell = self._cell() or self.cell  # The property raises.
        if self._is_functional:
            return cell([state, injection])
        return cell(state, injection)

    @property
    def reads_keras_mask(self) -> bool:
        """Whether the state of the cell carries the mask, as tensors in Keras do.

        Cells whose `inject` takes the mask apply it themselves.
        """
        inject = getattr(self.cell, "inject", None)
        takes_mask = inject and "mask" in inspect.signature(inject).parameters
        return self.cell.supports_masking and not takes_mask

    def splitting(self, injection: Nest) -> Splitting | None:
        """Returns the operator splitting of the function, or `None`."""
        return self._statement("operator_splitting", injection)

    def lipschitz_constant(self, injection: Nest) -> Any:
        """Returns the result of the cell's method of this name, or `None`."""
        return self._statement("lipschitz_constant", injection)

    def distance_bound(self, state: Nest, injection: Nest) -> tf.Tensor | None:
        """Returns the result of the cell's method of this name, or `None`."""
        return self._statement("distance_bound", state, injection)

    def _statement(self, name: str, *arguments: Nest) -> Any:
        if not declares(self.cell, name):
            return None
        return getattr(self.cell, name)(*arguments)


class InjectionRows:
    """Detects which tensors of an injection have one row per sample.

    A kernel can have as many rows as the batch has samples, and the length of a
    sequence can be as unknown as the batch size. Therefore the injection is traced for
    two batch sizes: tensors with rows follow the batch size. Without a trace, as for an
    `inject` that knows its batch size, nothing is known.

    Args:
        inject: Function of inputs and `training` that returns an injection.
    """

    def __init__(self, inject: Callable[[Nest, bool], Nest]) -> None:
        self.inject = inject
        self._known: dict[str, Nest] = {}

    def __call__(self, inputs: Nest, training: bool) -> Nest | None:
        """Returns a nest of Booleans like the injection of inputs `(batch, ...)`.

        Returns `None` if `inject` fails for other batch sizes. `"unknown"` marks
        tensors whose first axis lacks a static size, for example after a reshape to
        `(-1, ...)` along an axis of unknown size, or has another multiple of the batch
        size, for example after a reshape to `(-1, features)`.
        """
        specs = [
            map_tensors(
                lambda leaf: tf.TensorSpec([batch, *leaf.shape[1:]], leaf.dtype), inputs
            )
            for batch in (2, 3)
        ]
        kind = str((specs[0], training))
        if kind not in self._known:
            try:
                two, three = (_trace(self.inject, spec, training) for spec in specs)
                self._known[kind] = tree.map_structure(_has_rows, two, three)
            except Exception:  # The batch of the caller is not at fault.
                self._known[kind] = None
        return self._known[kind]


def _trace(inject: Callable[[Nest, bool], Nest], specs: Nest, training: bool) -> Nest:
    # Keep the trace out of the caller's graph, and its losses out of the cell.
    graph = function_graph("rows")
    with tf.init_scope(), keras.StatelessScope(), graph.as_default():
        inputs = placeholders(specs)
        return tree.map_structure(tf.convert_to_tensor, inject(inputs, training))


def _has_rows(two: tf.Tensor, three: tf.Tensor) -> bool | str:
    """Returns whether a tensor has rows, given it for batches of two and of three."""
    if two.shape.rank is None or three.shape.rank is None:
        return "unknown"
    if str(two.shape[1:]) != str(three.shape[1:]):
        return "unknown"  # Samples moved to another axis, as by a fixed batch size.
    sizes = two.shape[:1].as_list(), three.shape[:1].as_list()
    if None in sizes[0] or (sizes[0] != sizes[1] and sizes != ([2], [3])):
        return "unknown"
    return sizes[0] != sizes[1]


def map_tensors(function: Callable[[Any], Any], inputs: Nest) -> Nest:
    """Maps the tensors of inputs; those that are absent stay `None`."""
    return tree.map_structure(
        lambda leaf: None if leaf is None else function(leaf), inputs
    )


def placeholders(specs: Nest) -> Nest:
    """Returns placeholders in the graph being built for a nest of `tf.TensorSpec`."""
    return map_tensors(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs
    )


def num_rows(inputs: Nest) -> Any:
    """Returns the static batch size of inputs."""
    return next(leaf.shape[0] for leaf in tree.flatten(inputs) if leaf is not None)


def single_mask(mask: Nest | None) -> tf.Tensor | None:
    """Returns the only mask that Keras found at the inputs, or `None`.

    Raises:
        ValueError: If several inputs have a mask.
    """
    if mask is None:
        return None
    masks = [leaf for leaf in tree.flatten(mask) if leaf is not None]
    if len(masks) > 1:
        raise ValueError(
            "Several inputs of a DEQ have a mask, and its state can have only one. "
            f"Pass it as `mask`. Received: {len(masks)} masks."
        )
    return tf.cast(masks[0], tf.bool) if masks else None


def cell_state(cell: keras.layers.Layer, injection: Nest) -> Nest:
    """Returns the initial state of a cell: by default, zeros like the injection."""
    if hasattr(cell, "initial_state"):
        state = cell.initial_state(injection)
        if type(None) in map(type, tree.flatten(state)):
            raise ValueError(
                f"`{type(cell).__name__}.initial_state` must return a nest of tensors. "
                f"Received: initial_state={state!r}."
            )
        return _plain(state) if tree.is_nested(state) else state
    return tree.map_structure(tf.zeros_like, injection)


def _plain(nest: Nest) -> Nest:
    """Replaces lists and dicts that are attributes of a layer by plain ones.

    Keras tracks such attributes in classes of its own, which differ in structure from
    the lists and dicts that callers pass.
    """
    if isinstance(nest, list):
        return [_plain(leaf) for leaf in nest]
    if type(nest) is tuple:
        return tuple(_plain(leaf) for leaf in nest)
    is_tracked = type(nest).__module__.startswith("keras.")
    if isinstance(nest, dict) and (is_tracked or type(nest) is dict):
        return {key: _plain(leaf) for key, leaf in nest.items()}
    return nest


def cast_floating(dtype: str, tensors: Nest, dtypes: Sequence[tf.DType] = ()) -> Nest:
    """Casts the floating-point tensors of a nest.

    Args:
        dtype: Dtype of the tensors.
        tensors: Nest of tensors, some of which can be `None`.
        dtypes: Dtypes of the first leaves, which replace `dtype`.
    """
    first, leaves = iter(dtypes), list[Any]()
    for leaf in tree.flatten(tensors):
        if leaf is None:
            leaves.append(leaf)
            continue
        leaf, to = tf.convert_to_tensor(leaf), next(first, dtype)
        leaves.append(tf.cast(leaf, to) if leaf.dtype.is_floating else leaf)
    return tree.pack_sequence_as(tensors, leaves)
