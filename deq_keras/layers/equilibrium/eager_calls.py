"""Compiled functions for eager calls that repeat."""

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core.fingerprint import Fingerprint, fingerprint
from deq_keras.core.internals import (
    as_traced,
    entry_layer,
    flatten_layers,
    keras_masks,
    may_differentiate_twice,
    own_losses,
    own_value,
    stateless_scope,
)
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium.solve_scope import SolveScope

# Operation by operation, this many calls take about as long as a trace.
_NUM_UNTRACED = 6

# A layer that changes more often runs operation by operation.
_MOST_CHANGES = 8

# Calls of further shapes run operation by operation.
_MOST_FUNCTIONS = 16

# Concrete functions are looked up by TensorFlow for further batch sizes.
_MOST_SHAPES = 64


class EagerCalls:
    """Runs eager calls of a `DEQ` layer that repeat as compiled functions.

    Operation by operation, a solve starts thousands of kernels from Python. After six
    calls with inputs of the same structure, dtypes and shapes, whatever the batch size,
    the next one traces a function, and later ones run it while all that they compute
    with is as it was (see `fingerprint`). After a change, another one is traced. Cells
    whose Python code does more than compute run operation by operation. So does
    everything under `tf.config.run_functions_eagerly(True)` and in models compiled with
    `run_eagerly=True`, and calls of which an implicit gradient may be differentiated
    twice.

    Args:
        layer: The `DEQ` layer, which owns this object.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = weakref.ref(layer)
        self._fingerprint: Fingerprint | None = None
        self._functions: dict[Any, _Function] = {}
        self._num_untraced: Counter[Any] = Counter()
        self._num_changes = 0

    def find(
        self,
        inputs: Nest,
        initial_state: Nest | None,
        mask: Nest | None,
        training: bool | None,
        max_iter: Any,
        tol: Any,
        is_differentiated: bool,
        scope: SolveScope | None,
    ) -> Callable[[], tuple] | None:
        """Returns a function that computes a call, or `None`.

        Args:
            inputs: See the call arguments of `DEQ`, as for the next five.
            initial_state: See `inputs`.
            mask: See `inputs`.
            training: See `inputs`.
            max_iter: See `inputs`.
            tol: See `inputs`.
            is_differentiated: Boolean. Whether a tape may record the call.
            scope: The `SolveScope` of the call, or `None`.
        """
        layer: Any = self._layer()
        if not tf.executing_eagerly() or (
            self._num_changes > _MOST_CHANGES
            or tf.config.functions_run_eagerly()
            or getattr(entry_layer(layer), "run_eagerly", False)
            or tf.distribute.has_strategy()
            or stateless_scope() is not None
            or not (scope is None or type(scope) is SolveScope)
        ):
            return None
        if is_differentiated and _is_differentiated_twice(inputs, layer, training):
            return None
        mask = keras_masks(inputs) if mask is None else mask
        budget: tuple = (None, None)
        if not training:
            request = layer._budget.request(None, max_iter, tol, scope)
            budget = request.max_iter, request.tol
            if isinstance(request.tol, float):  # In float64, as the solver has it.
                budget = request.max_iter, tf.constant(request.tol, "float64")
            max_iter = tol = None
        elif tf.is_tensor(max_iter) or tf.is_tensor(tol):
            return None
        current = fingerprint(layer.cell, type(layer))
        if current is None:
            self._num_changes = _MOST_CHANGES + 1
            return None
        if self._fingerprint is None or current.parts != self._fingerprint.parts:
            self._num_changes += self._fingerprint is not None
            self._fingerprint, self._functions = current, {}
            self._num_untraced.clear()
        arguments = inputs, initial_state, mask, *budget
        leaves = [
            None if leaf is None else tf.convert_to_tensor(leaf)
            for leaf in tree.flatten(arguments)
        ]
        shapes = [None if leaf is None else tuple(leaf.shape) for leaf in leaves]
        structure = tree.map_structure(lambda _: 0, arguments)
        values = training, max_iter, tol, is_differentiated, scope is not None
        key = (
            values,
            layer._trace_version.number,
            layer.compute_dtype,
            keras.config.floatx(),
            *(leaf is not None and leaf.dtype for leaf in leaves),
            *(shape and (len(shape), shape[1:]) for shape in shapes),
            repr(structure),
        )
        tensors = [leaf for leaf in leaves if leaf is not None]
        if key not in self._functions:
            self._num_untraced[key] += 1
            if (
                self._num_untraced[key] <= _NUM_UNTRACED
                or len(self._functions) >= _MOST_FUNCTIONS
            ):
                return None
            is_given = [leaf is not None for leaf in leaves]
            function = self._trace(values, structure, is_given)
            # The lists to which the layers of a cell add losses.
            losses = [own_losses(one) for one in flatten_layers(layer)]
            counts = [len(one) for one in losses]
            function.get_concrete_function(*tensors)
            traced = fingerprint(layer.cell, type(layer))
            has_effects = traced is None or traced.parts != current.parts
            for one, count in zip(losses, counts, strict=True):
                has_effects |= len(one) > count
                del one[count:]  # Tensors of the function.
            if has_effects:
                self._num_changes = _MOST_CHANGES + 1
                return None
            self._functions[key] = _Function(function)
        return functools.partial(self._functions[key], tensors, (*shapes,))

    def _trace(self, values: tuple, structure: Nest, is_given: list[bool]) -> Any:
        """Returns a function of the leaves that are given; the others are `None`."""
        layer = self._layer

        def run(*tensors: tf.Tensor) -> Any:
            owner: Any = layer()
            rest = iter(tensors)
            leaves = [next(rest) if one else None for one in is_given]
            arguments: Any = tree.pack_sequence_as(structure, leaves)
            inputs, initial_state, mask, max_iter, tol = arguments
            training, *fixed, is_differentiated, is_recorded = values
            budget = fixed if training else (max_iter, tol)
            scope = SolveScope(owner) if is_recorded and not training else None
            return owner._compute(
                inputs,
                initial_state,
                mask,
                training,
                *budget,
                is_differentiated,
                scope,
                owner.name,
            )

        return tf.function(run, autograph=False, reduce_retracing=True)


class _Function:
    """Calls the concrete functions of a `tf.function` of tensors.

    A `tf.function` finds its concrete function anew in each call, which takes longer
    than a small solve.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self._concrete: dict[tuple, Any] = {}

    def __call__(self, tensors: list[tf.Tensor], shapes: tuple) -> Any:
        concrete = self._concrete.get(shapes)
        if concrete is None:
            concrete = self.function.get_concrete_function(*tensors)
            if len(self._concrete) < _MOST_SHAPES:
                self._concrete[shapes] = concrete
        # The graph optimizer would change the last bits of repeated calls.
        with as_traced():
            return concrete(*tensors)


def _is_differentiated_twice(inputs: Nest, layer: Any, training: bool | None) -> bool:
    """Returns whether a second derivative may be taken, which the traced call lacks."""
    gradient = layer.gradient
    if not training:
        gradient = gradient.outside_training(layer.solver)
    if not gradient.has_adjoint:
        return False
    variables = [*map(own_value, layer.trainable_weights)]
    for variable in variables[:1]:
        tf.convert_to_tensor(variable)  # A tape watches variables that are read.
    tensors = [one for one in tree.flatten(inputs) if tf.is_tensor(one)]
    handles = [variable.handle for variable in variables]
    return may_differentiate_twice([*tensors, *handles])
