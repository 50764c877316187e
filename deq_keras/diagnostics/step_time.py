"""Breakdown of the time of a layer's training step."""

import time
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import replicas
from deq_keras.core.graphs import compile_function
from deq_keras.core.internals import attach_masks, keras_masks
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium.cell_problem import cast_floating

_ROUNDS = 3


class StepTime(NamedTuple):
    """Times of the components of a training step, in seconds.

    Attributes:
        f: Float. Time of a bare loop of evaluations of f, whose number is the mean over
            samples.
        solver: Float. Remaining time of the forward pass: mixing, norms, bookkeeping,
            the injection, and evaluations of samples that are already done.
        gradient: Float. Time that differentiation adds to the forward pass.
    """

    f: float
    solver: float
    gradient: float


class StepTimer:
    """Times the components of a `DEQ` layer's training step in isolation.

    Times three functions: the layer's forward pass in training; the forward pass with
    its gradient, for the loss mean(z*^2) and the penalty; and a bare loop of
    evaluations of f. Each is compiled, and the fastest of three runs counts. The rest
    of the model and the input pipeline are excluded. Metrics and seeds of the layer do
    not change.

    Args:
        layer: A built `DEQ` layer.
        jit_compile: Boolean. Whether XLA compiles the functions. Defaults to `False`.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> inputs = np.ones((8, 3), "float32")
    >>> _ = layer(inputs)
    >>> parts = deq_keras.diagnostics.StepTimer(layer).measure(inputs)
    >>> parts.f > 0
    True
    """

    def __init__(self, layer: Any, jit_compile: bool = False) -> None:
        self._layer = layer
        self._evaluate, self._forward, self._step = (
            compile_function(part, jit_compile=jit_compile)
            for part in (self._evaluate_f, self._call_layer, self._train)
        )
        self._begin = compile_function(self._initial_state)

    def measure(self, inputs: Nest) -> StepTime:
        """Measures the `StepTime` of a batch. The first call compiles.

        Args:
            inputs: Inputs of the layer.
        """
        # The three functions contain each other: f alone, then the solver around it,
        # then the gradient. Differences of their times are the components.
        masks = keras_masks(inputs)
        inputs = cast_floating(self._layer.compute_dtype, inputs)
        state, injection = self._begin(inputs, masks)
        _, num_evaluations = self._forward(inputs, masks)
        count = tf.cast(tf.round(num_evaluations), tf.int32)
        calls = (
            lambda: self._evaluate(state, injection, count),
            lambda: self._forward(inputs, masks),
            lambda: self._step(inputs, masks),
        )
        # The minimum excludes compilation and other load of the machine.
        evaluate, forward, step = (
            min(_measure_seconds(call) for _ in range(_ROUNDS)) for call in calls
        )
        forward = min(forward, step)
        evaluate = min(evaluate, forward)
        return StepTime(evaluate, forward - evaluate, step - forward)

    def _initial_state(self, inputs: Nest, masks: Nest) -> tuple[Nest, Nest]:
        problem = self._layer.problem(attach_masks(inputs, masks))
        return self._layer.request(problem).initial_state, problem.injection

    def _evaluate_f(self, state: Nest, injection: Nest, count: tf.Tensor) -> tf.Tensor:
        problem = self._layer.problem(injection=injection)
        _, state = tf.while_loop(
            lambda index, state: index < count,
            lambda index, state: (index + 1, problem(state)),
            (0, state),
        )
        return _sum(state)

    def _call_layer(self, inputs: Nest, masks: Nest) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a scalar that depends on the state, and the mean evaluations."""
        attach_masks(inputs, masks)
        with self._without_effects():
            state = self._layer(inputs, training=True)
            names = {metric.name: metric for metric in self._layer.metrics}
            # The first one: the layer's own, before its adjoint.
            name = next(name for name in names if name.endswith("_evaluations"))
            return _sum(state), names[name].result()

    def _train(self, inputs: Nest, masks: Nest) -> tf.Tensor:
        attach_masks(inputs, masks)
        leaves = [leaf for leaf in tree.flatten(inputs) if leaf.dtype.is_floating]
        with self._without_effects() as scope:
            with tf.GradientTape() as tape:
                tape.watch(leaves)
                state = tree.flatten(self._layer(inputs, training=True))
                size = tf.add_n([tf.size(leaf) for leaf in state])
                square = _sum([tf.square(tf.cast(leaf, tf.float32)) for leaf in state])
                loss = square / tf.cast(size, tf.float32) + sum(scope.losses)
            weights = [
                replicas.components(v)[0] for v in self._layer.trainable_variables
            ]
            sources = [*leaves, *weights]
            # Stays in the scope because the adjoint updates the layer's metrics.
            return _sum(tape.gradient(loss, sources, unconnected_gradients="zero"))

    def _without_effects(self) -> keras.StatelessScope:
        """Returns a scope in which metrics start at 0 and no variable changes."""
        # Covers all metrics: reading one under a strategy would require all workers.
        metrics = [v for metric in self._layer.metrics for v in metric.variables]
        counts = [(v, tf.zeros(v.shape, v.dtype)) for v in metrics]
        return keras.StatelessScope(counts, collect_losses=True)


def _sum(tensors: Nest) -> tf.Tensor:
    return tf.add_n(
        [tf.reduce_sum(tf.cast(leaf, tf.float32)) for leaf in tree.flatten(tensors)]
    )


def _measure_seconds(call: Any) -> float:
    start = time.perf_counter()
    tree.map_structure(np.asarray, call())  # Waits for the device.
    return time.perf_counter() - start
