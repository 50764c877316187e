"""Training steps through an equilibrium, and what they cost."""

import numpy as np
import tensorflow as tf
from keras import tree

import deq_keras

from .solving import exact_solver, layer
from .timing import compare

UNROLLED = "unrolled"


class TrainingStep:
    """Loss mean((z* - target)^2) and its parameter gradient, compiled.

    Of a state of several tensors, the loss is the sum over them.

    Args:
        workload: a `workloads.Workload`.
        name: a solver's name, which then solves the forward and the adjoint equation,
            or `UNROLLED` for back-propagation through plain iterations.
        num_evaluations: int. The exact budget of each of the two solves.
    """

    def __init__(self, workload, name, num_evaluations):
        is_unrolled = name == UNROLLED
        solver = (
            deq_keras.solvers.FixedPointIteration(num_evaluations, tol=None)
            if is_unrolled
            else exact_solver(name, num_evaluations)
        )
        self._cell = workload.cell
        gradient = "unrolled" if is_unrolled else "implicit"
        self._deq = layer(workload.cell, solver, gradient)
        self._arguments = workload.injection, workload.target
        step = tf.function(self._step)
        self._compiled = step.get_concrete_function(*self._arguments)

    def __call__(self):
        """Returns the loss and the gradients of the cell's weights."""
        return self._compiled(*tf.nest.flatten(self._arguments))

    def gradient(self):
        """Returns the gradient of all weights as one float64 vector."""
        _, gradients = self()
        return np.concatenate([np.asarray(g, np.float64).ravel() for g in gradients])

    def statistics(self):
        """Returns the layer's own statistics of the last steps, as floats."""
        return {metric.name: float(metric.result()) for metric in self._deq.metrics}

    def _step(self, injection, target):
        with tf.GradientTape() as tape:
            state = self._deq(injection, training=True)
            loss = tf.add_n(
                tree.flatten(tree.map_structure(_mean_square, state, target))
            )
        return loss, tape.gradient(loss, self._cell.trainable_variables)


def _mean_square(state, target):
    return tf.reduce_mean(tf.square(tf.cast(state, target.dtype) - target))


def step_cost(workload, cell, name, num_evaluations, effort):
    """Returns the cost of a training step over its ideal, and the step's statistics.

    The ideal is `CompiledCell.ideal_step`.

    Args:
        workload: a `workloads.Workload`.
        cell: its `CompiledCell`.
        name: what `TrainingStep` takes.
        num_evaluations: int. The exact budget of each of the two solves.
        effort: a `timing.Effort`.
    """
    step = TrainingStep(workload, name, num_evaluations)
    ratio = compare(step, cell.ideal_step(num_evaluations), effort)
    return {"ratio": ratio, "statistics": step.statistics()}
