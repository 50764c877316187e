"""The check of equilibrium cells."""

import pathlib
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras import layers, solvers
from deq_keras.core.rounding import full_float32
from deq_keras.core.structure import Nest
from deq_keras.diagnostics import certify
from deq_keras.testing.components import (
    REGIMES,
    assert_close,
    assert_registered,
    in_regime,
)


@full_float32()
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
    must have gradients. At a few states, `deq_keras.diagnostics.certify` must not
    contradict a declared `lipschitz_constant`. The cell must return the same result
    eagerly, in a graph and compiled by XLA. Its config and a file must restore it.
    `check_cell` also raises the errors of `DEQ`.

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
        AssertionError: Names the cell and the first property that fails.
        UserWarning: If `call` does not use the inputs.
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
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*does not use the inputs", UserWarning)
        for training in (False, True):
            layer(inputs, mask=mask, training=training)
    cell, name = layer.cell, f"`{type(layer.cell).__name__}`"
    for weight in cell.trainable_weights:
        # Gates that start at zero hide the layers behind them.
        weight.assign(_noisy(weight.value, scale=0.1))
    state, injection = _state(layer, inputs), layer.inject(inputs)
    value = cell(state, injection)
    assert_close(cell(state, injection), value, 0.0, f"{name} is not pure")
    for regime in REGIMES[1:]:
        received = in_regime(cell, regime)(state, injection)
        message = f"{name} computes something else when compiled ({regime})"
        assert_close(received, value, tolerance, message)

    for change in (1.0, np.nan):

        def change_first(leaf: Any, change: float = change) -> tf.Tensor:
            leaf = tf.convert_to_tensor(leaf)
            if not leaf.dtype.is_floating:
                return leaf
            return tf.concat([leaf[:1] + tf.cast(change, leaf.dtype), leaf[1:]], axis=0)

        others, moved = tree.map_structure(change_first, (inputs, state))
        received = cell(moved, layer.inject(others))
        received, expected = (
            tree.map_structure(lambda leaf: leaf[1:], nest)
            for nest in (received, value)
        )
        message = f"{name} lets a sample depend on another one, to which is added"
        assert_close(received, expected, 1e-5, f"{message} {change}")
    if mask is not None:
        padding = ~np.asarray(mask)

        def without_padding(leaf: np.ndarray) -> np.ndarray:
            leaf = np.array(leaf)
            if leaf.shape[: padding.ndim] == padding.shape:
                leaf[padding] = leaf[padding] + 1
            return leaf

        others = tree.map_structure(without_padding, inputs)
        expected, received = (
            layer.problem(nest, tf.constant(mask))(state) for nest in (inputs, others)
        )
        assert_close(received, expected, 1e-5, f"{name} depends on padding")
    problem = layer.problem(inputs)
    if problem.fn.lipschitz_constant(problem.injection) is not None:
        for scale in (0.0, 0.1, 1.0, 10.0):
            point = _noisy(layer.request(problem).initial_state, scale)
            kinds = certify(layer, inputs, point).kind.numpy()
            message = f"{name} exceeds its `lipschitz_constant`"
            assert b"contradicted" not in kinds, message

    with tf.GradientTape() as tape:
        value = cell(state, layer.inject(inputs))
    cotangent = tree.flatten(_noisy(tree.map_structure(tf.zeros_like, value)))
    weights = cell.trainable_weights
    slopes = tape.gradient(
        tree.flatten(value), [weight.value for weight in weights], cotangent
    )
    for weight, slope in zip(weights, slopes, strict=True):
        message = f"{name} has no gradient for its weight `{weight.path}`"
        assert slope is not None, message
        slope = np.asarray(tf.convert_to_tensor(slope))
        assert np.all(np.isfinite(slope)) and np.any(slope), f"{message}: {slope}"
    if differentiates_jacobian:
        _check_second_derivatives(name, make, layer, inputs)

    assert_registered(type(cell))
    serialized = keras.saving.serialize_keras_object(cell)
    copy = keras.saving.deserialize_keras_object(serialized)
    restored = keras.saving.serialize_keras_object(copy)
    assert restored == serialized, (
        f"{name} has another config after `from_config`: {restored} != {serialized}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        functional_model(layer, inputs).save(path)
        (loaded,) = (
            one
            for one in keras.saving.load_model(path).layers
            if isinstance(one, layers.DEQ)
        )
    received = loaded.cell(state, loaded.inject(inputs))
    message = f"{name} computes something else after `load_model`"
    assert_close(received, cell(state, layer.inject(inputs)), 1e-6, message)


def _layer(cell: keras.layers.Layer) -> layers.DEQ:
    solver = solvers.FixedPointIteration(max_iter=2, tol=None)
    return layers.DEQ(cell, solver, "phantom", regularizer=None)


def _state(layer: layers.DEQ, inputs: Nest) -> Nest:
    """Returns a state away from the initial one, where gates and gradients are zero."""
    return _noisy(layer.request(layer.problem(inputs)).initial_state, scale=0.3)


def _noisy(nest: Nest, scale: float = 1.0) -> Nest:
    random = np.random.default_rng(0)

    def add(leaf: Any) -> Any:
        leaf = tf.convert_to_tensor(leaf)
        if not leaf.dtype.is_floating:
            return leaf
        return leaf + tf.cast(scale * random.normal(size=leaf.shape), leaf.dtype)

    return tree.map_structure(add, nest)


def _check_second_derivatives(
    name: str, make: Callable, layer: layers.DEQ, inputs: Nest
) -> None:
    """Compares the slope of |v^T J|^2 along a direction with finite differences."""
    double = _layer(make(dtype="float64"))
    try:
        double(inputs)
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"{name} does not compute in the `dtype` that it receives, float64. Give "
            f"sublayers `dtype=self.dtype_policy`. Received: {error}"
        ) from error
    double.set_weights(layer.get_weights())
    inputs = tree.map_structure(
        lambda leaf: leaf.astype("float64") if leaf.dtype.kind == "f" else leaf, inputs
    )
    injection, state = double.inject(inputs), _state(double, inputs)
    leaves, direction = tree.flatten(state), tree.flatten(_noisy(state))

    def squared_products(step: float) -> tf.Tensor:
        shifted = [a + step * b for a, b in zip(leaves, direction, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(shifted)
            value = double.cell(tree.pack_sequence_as(state, shifted), injection)
        products = tape.gradient(
            tree.flatten(value), shifted, direction, unconnected_gradients="zero"
        )
        return tf.add_n([tf.reduce_sum(tf.square(leaf)) for leaf in products])

    with tf.GradientTape() as tape:
        tape.watch(leaves)
        total = squared_products(0.0)
    slopes = tape.gradient(total, leaves, unconnected_gradients="zero")
    received = sum(
        float(tf.reduce_sum(a * b)) for a, b in zip(slopes, direction, strict=True)
    )
    step = 1e-6
    difference = squared_products(step) - squared_products(-step)
    expected = float(difference) / (2 * step)
    message = (
        f"{name} has other second derivatives than finite differences: {received:g}, "
        f"not {expected:g}. Normalize with `deq_keras.layers.LayerNormalization` or "
        "`GroupNormalization`, or pass differentiates_jacobian=False"
    )
    tolerance = 1e-5 * max(abs(expected), float(total))
    assert abs(received - expected) <= tolerance, message


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
