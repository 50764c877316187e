"""Checks of equilibrium cells."""

import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras import layers, solvers
from deq_keras.core.linearization import Linearization, matrix_vjp
from deq_keras.core.problem import in_dtype
from deq_keras.core.structure import Nest, StateStructure
from deq_keras.diagnostics.spectral_radius import EPSILON
from deq_keras.testing.requirements import (
    REGIMES,
    Subject,
    check_registration,
    compiled,
    deviation,
)

_PURE = "Compute the state from `state` and `injection` only; draw in `inject`."
_ROWS = (
    "Normalize over features or positions instead of the batch, and reshape within a "
    "sample."
)
# Distances of the pairs of states that are compared with a Lipschitz constant, and
# steps of the power iteration that finds their direction.
_DISTANCES = (10.0, 1.0, 0.1)
_NUM_ITERATIONS = 10


def check_cell(
    make: Callable[..., keras.layers.Layer],
    inputs: Nest,
    mask: Any = None,
    differentiates_jacobian: bool = True,
    tolerance: float = 1e-4,
) -> None:
    """Checks that a cell satisfies the contract of `EquilibriumCell`.

    `call` must be pure and return a state like the one it receives. A sample must not
    depend on other samples, or on padding. It must depend on its inputs, and weights
    must have gradients. Pairs of states must not exceed a declared
    `lipschitz_constant`. The cell must return the same result eagerly, in a graph and
    compiled by XLA. Its config and a file must restore
    it. `check_cell` also raises the errors of `DEQ`.

    Args:
        make: Function of `dtype` that returns a new cell.
        inputs: Array, or nest of arrays, `(batch, ...)`. Inputs of the `DEQ` layer,
            with two samples or more.
        mask: Boolean array `(batch, ...)`, false at positions that are padding.
            Defaults to `None`.
        differentiates_jacobian: Boolean. Whether a regularizer differentiates the
            Jacobian of the cell. If true, second derivatives must equal finite
            differences in float64. Defaults to `True`.
        tolerance: Positive float. Largest deviation of graphs and XLA, relative to the
            largest magnitude. Defaults to `1e-4`.

    Raises:
        AssertionError: Names the first property that fails, the expected and received
            values, and a remedy.
        ValueError: If `DEQ` does not accept the cell.

    Example:

    >>> deq_keras.testing.check_cell(
    ...     lambda **dtype: deq_keras.layers.DenseCell(8, **dtype),
    ...     np.random.default_rng(0).normal(size=(3, 5)).astype("float32"),
    ... )
    """
    inputs = tree.map_structure(np.asarray, inputs)
    layer = _layer(make())
    # The layer checks purity, structure, shapes and dtypes when it is called.
    for training in (False, True):
        layer(inputs, mask=mask, training=training)
    for weight in layer.cell.trainable_weights:
        # Gates that start at zero hide the layers behind them.
        weight.assign(_noisy(weight.value, scale=0.1))
    subject = Subject(type(layer.cell).__name__)
    state = _state(layer, inputs)
    _check_value(subject, layer, inputs, state, tolerance)
    _check_isolation(subject, layer, inputs, state)
    if mask is not None:
        _check_mask(subject, layer, inputs, state, np.asarray(mask))
    _check_lipschitz_constant(subject, layer, inputs, state)
    _check_use_of_inputs(subject, layer, inputs, state)
    _check_weights(subject, layer, inputs, state)
    if differentiates_jacobian:
        _check_second_derivatives(subject, make, layer, inputs)
    _check_serialization(subject, layer, inputs, state)


def _layer(cell: keras.layers.Layer) -> layers.DEQ:
    solver = solvers.FixedPointIteration(max_iter=2, tol=None)
    return layers.DEQ(cell, solver, "phantom", regularizer=None)


def _state(layer: layers.DEQ, inputs: Nest) -> Nest:
    """Returns a state away from the initial one, where gates and gradients are zero."""
    state = layer.request(layer.problem(inputs)).initial_state
    return _noisy(state, scale=0.3)


def _noisy(nest: Nest, scale: float = 1.0) -> Nest:
    random = np.random.default_rng(0)

    def add(leaf: Any) -> Any:
        leaf = tf.convert_to_tensor(leaf)
        if not leaf.dtype.is_floating:
            return leaf
        return leaf + tf.cast(scale * random.normal(size=leaf.shape), leaf.dtype)

    return tree.map_structure(add, nest)


def _apply(layer: layers.DEQ, inputs: Nest, state: Nest) -> Nest:
    return layer.cell(state, layer.inject(inputs))


def _check_value(
    subject: Subject, layer: layers.DEQ, inputs: Nest, state: Nest, tolerance: float
) -> None:
    injection = layer.inject(inputs)
    first, second = (layer.cell(state, injection) for _ in range(2))
    rule = "return the same state in two calls with the same arguments"
    subject.require_close(rule, first, second, 0.0, _PURE)
    for regime in REGIMES[1:]:
        subject.require_close(
            f"return the same state in eager mode and compiled ({regime})",
            first,
            compiled(layer.cell, regime)(state, injection),
            tolerance,
            "Use `keras.ops`, and no values of Python that a call changes.",
        )


def _check_isolation(
    subject: Subject, layer: layers.DEQ, inputs: Nest, state: Nest
) -> None:
    apply = functools.partial(_apply, layer)
    expected = _without_first(apply(inputs, state))
    changes = {
        "the values": lambda leaf: leaf[:1] + 1,
        "NaN": lambda leaf: tf.fill(leaf[:1].shape, tf.constant(np.nan, leaf.dtype)),
    }
    for name, change in changes.items():

        def changed(leaf: Any, change: Callable = change) -> tf.Tensor:
            leaf = tf.convert_to_tensor(leaf)
            if not leaf.dtype.is_floating:
                return leaf
            return tf.concat([change(leaf), leaf[1:]], axis=0)

        received = apply(*tree.map_structure(changed, (inputs, state)))
        subject.require_close(
            f"compute a sample independently of {name} of another sample",
            expected,
            _without_first(received),
            1e-5,
            _ROWS,
        )


def _without_first(nest: Nest) -> Nest:
    return tree.map_structure(lambda leaf: leaf[1:], nest)


def _check_mask(
    subject: Subject, layer: layers.DEQ, inputs: Nest, state: Nest, mask: np.ndarray
) -> None:
    def changed(leaf: Any) -> Any:
        leaf = np.array(leaf)
        if leaf.shape[: mask.ndim] == mask.shape:
            leaf[~mask] = leaf[~mask] + 1
        return leaf

    first, second = (
        layer.problem(nest, tf.constant(mask))(state)
        for nest in (inputs, tree.map_structure(changed, inputs))
    )
    subject.require_close(
        "compute positions independently of padding",
        first,
        second,
        1e-5,
        "Let `inject` take a `mask` and apply it where positions are mixed.",
    )


def _check_lipschitz_constant(
    subject: Subject, layer: layers.DEQ, inputs: Nest, state: Nest
) -> None:
    """Compares |f(y) - f(z)| / |y - z| of a few pairs with the declared constant."""
    problem = layer.problem(inputs)
    declared = problem.lipschitz_constant
    if declared is None:
        return
    structure = StateStructure(state)
    epsilon = max(EPSILON[leaf.dtype] for leaf in structure.leaves)
    constant = np.asarray(in_dtype(declared, structure.dtype))
    constant = np.where(constant >= 0, constant, np.inf)  # Negative: none is known.
    center, random = structure.to_matrix(state), np.random.default_rng(0)
    for distance in _DISTANCES:
        noise = distance * _unit(random.normal(size=center.shape))
        first = structure.to_state(center + tf.cast(noise, center.dtype))
        linearization = problem.linearize(first)
        direction = tf.cast(_unit(random.normal(size=center.shape)), center.dtype)
        direction = _expanded(linearization, structure, direction)
        start = structure.to_matrix(first)
        second = structure.to_state(start + distance * direction)
        values = [structure.to_matrix(problem(one)) for one in (first, second)]
        # In half precision, the differences of states are not exactly the added steps.
        steps = np.linalg.norm(structure.to_matrix(second) - start, axis=1)
        changes = np.linalg.norm(values[1] - values[0], axis=1)
        sizes = np.linalg.norm(values[0], axis=1) + np.linalg.norm(values[1], axis=1)
        bounds = np.broadcast_to(constant, steps.shape)
        rounding = np.sqrt(epsilon) * bounds * steps + 100 * epsilon * sizes
        worst = np.argmax(changes - bounds * steps - rounding)
        subject.require(
            changes[worst] <= (bounds * steps + rounding)[worst],
            "change by at most its `lipschitz_constant` times the distance of two "
            "states",
            f"a constant of at least {changes[worst] / steps[worst]:g}",
            f"{bounds[worst]:g}",
            "Return a bound that holds for all states from `lipschitz_constant`, or "
            "None if none is known.",
        )


def _expanded(
    linearization: Linearization, structure: StateStructure, direction: tf.Tensor
) -> tf.Tensor:
    """Turns directions `(batch, features)` to directions of the largest change of f.

    Random directions rarely change f much.
    """
    for _ in range(_NUM_ITERATIONS):
        image = linearization.jvp(structure.to_state(direction))
        image = matrix_vjp(linearization, structure, structure.to_matrix(image))
        is_zero = tf.reduce_all(image == 0, axis=1, keepdims=True)
        direction = tf.where(is_zero, direction, _unit(image))
    return direction


def _unit(rows: Any) -> tf.Tensor:
    norm = tf.norm(rows, axis=1, keepdims=True)
    return tf.math.divide_no_nan(rows, norm)


def _check_use_of_inputs(
    subject: Subject, layer: layers.DEQ, inputs: Nest, state: Nest
) -> None:
    others = _noisy(inputs)  # It changes no integers.
    starts = (_state(layer, one) for one in (inputs, others))
    subject.require(
        deviation(inputs, others) == 0
        or deviation(*starts) > 0
        or deviation(*(_apply(layer, one, state) for one in (inputs, others))) > 0,
        "use the inputs",
        "another state for other inputs",
        "the same state",
        "Compute the injection from the inputs in `inject`, and use it in `call`.",
    )


def _check_weights(
    subject: Subject, layer: layers.DEQ, inputs: Nest, state: Nest
) -> None:
    weights = layer.cell.trainable_weights
    with tf.GradientTape() as tape:
        value = _apply(layer, inputs, state)
    cotangent = tree.flatten(_noisy(tree.map_structure(tf.zeros_like, value)))
    slopes = tape.gradient(
        tree.flatten(value), [weight.value for weight in weights], cotangent
    )
    for weight, slope in zip(weights, slopes, strict=True):
        slope = slope if slope is None else np.asarray(tf.convert_to_tensor(slope))
        subject.require(
            slope is not None and np.all(np.isfinite(slope)) and np.any(slope),
            f"have a gradient for its weight `{weight.path}`",
            "finite numbers that are not all zero",
            slope,
            "Use the weight in `inject` or `call`, with operations that have a "
            "gradient, or remove it.",
        )


def _check_second_derivatives(
    subject: Subject, make: Callable, layer: layers.DEQ, inputs: Nest
) -> None:
    """Compares the slope of |v^T J|^2 along a direction with finite differences."""
    double = _layer(make(dtype="float64"))
    try:
        double(inputs)
    except (TypeError, ValueError) as error:
        subject.require(
            False,
            "compute in the `dtype` that it receives",
            "float64",
            f"{type(error).__name__} ({str(error).splitlines()[0]})",
            "Give sublayers `dtype=self.dtype_policy`.",
        )
    double.set_weights(layer.get_weights())
    injection, state = double.inject(_cast(inputs)), _state(double, inputs)
    leaves, direction = tree.flatten(state), tree.flatten(_noisy(state))

    def squared_products(leaves: list) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            value = double.cell(tree.pack_sequence_as(state, leaves), injection)
        products = tape.gradient(
            tree.flatten(value), leaves, direction, unconnected_gradients="zero"
        )
        return tf.add_n([tf.reduce_sum(tf.square(leaf)) for leaf in products])

    def shifted(step: float) -> list:
        return [a + step * b for a, b in zip(leaves, direction, strict=True)]

    with tf.GradientTape() as tape:
        tape.watch(leaves)
        total = squared_products(leaves)
    slopes = tape.gradient(total, leaves, unconnected_gradients="zero")
    received = sum(
        float(tf.reduce_sum(a * b)) for a, b in zip(slopes, direction, strict=True)
    )
    step = 1e-6
    difference = squared_products(shifted(step)) - squared_products(shifted(-step))
    expected = float(difference) / (2 * step)
    subject.require(
        abs(received - expected) <= 1e-5 * max(abs(expected), float(total)),
        "have exact second derivatives, for regularizers of its Jacobian",
        f"{expected:g}, the finite difference of |v^T J|^2",
        f"{received:g}",
        "Normalize with `deq_keras.layers.LayerNormalization` or `GroupNormalization`, "
        "and give gradients of your own a gradient. Pass differentiates_jacobian=False "
        "for a cell that no such regularizer uses.",
    )


def _cast(inputs: Nest) -> Nest:
    return tree.map_structure(
        lambda leaf: leaf.astype("float64") if leaf.dtype.kind == "f" else leaf, inputs
    )


def _check_serialization(
    subject: Subject, layer: layers.DEQ, inputs: Nest, state: Nest
) -> None:
    check_registration(subject, type(layer.cell))
    serialized = keras.saving.serialize_keras_object(layer.cell)
    copy = keras.saving.deserialize_keras_object(serialized)
    subject.require_equal(
        "have the same config after `serialize_keras_object` and "
        "`deserialize_keras_object`",
        serialized,
        keras.saving.serialize_keras_object(copy),
        "Return every argument from `get_config`: {**super().get_config(), name: "
        "value}.",
    )
    model = functional_model(layer, inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        (loaded,) = (
            one
            for one in keras.saving.load_model(path).layers
            if isinstance(one, layers.DEQ)
        )
    subject.require_close(
        "compute the same after `model.save` and `load_model`",
        _apply(layer, inputs, state),
        _apply(loaded, inputs, state),
        1e-6,
        "Create all weights in the constructor or in `build`, from `get_config` alone.",
    )


def functional_model(layer: keras.layers.Layer, inputs: Nest) -> keras.Model:
    """Returns a functional model of a layer, for `inputs` of any batch size."""
    tensors = symbolic(inputs)
    return keras.Model(tensors, layer(tensors))


def symbolic(inputs: Nest, name: str | None = None) -> Nest:
    """Returns symbolic tensors like an array or a nest of arrays `(batch, ...)`."""
    if isinstance(inputs, dict):
        # Keras requires inputs of a dict to have the names of their keys.
        return {key: symbolic(one, key) for key, one in inputs.items()}
    if isinstance(inputs, list | tuple):
        return [symbolic(one) for one in inputs]
    return keras.Input(inputs.shape[1:], dtype=inputs.dtype.name, name=name)
