"""Diagnostics of an equilibrium over the epochs of training."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count
from deq_keras.core.graphs import compile_function
from deq_keras.core.internals import keras_masks
from deq_keras.core.rounding import full_float32
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    row_norms,
    where_rows,
    zero_padding,
)
from deq_keras.diagnostics.jacobian_norm import jacobian_norm
from deq_keras.diagnostics.spectral_radius import spectral_radius
from deq_keras.diagnostics.subject import (
    encoder,
    linearize_solution,
    single_layer,
)
from deq_keras.solvers import DIVERGED, SolveRequest

# Mean relative change of the state beyond the budget above which to warn.
_LARGEST_CHANGE = 0.05
# Share of the loss that residuals may cause. Smaller tolerances change image restorers
# with 0.03 to 0.05 by up to 1 dB, those with 0.002 by at most 0.2 dB.
_LARGEST_ERROR = 0.02
# Spread of the states below which to warn, if the inputs differ more. A classifier that
# learned had 0.5 to 0.97 in each epoch, one that had fallen to chance at most 0.02.
_SMALLEST_SPREAD = 0.03
_SPREAD_OF_INPUTS = 0.1
# Relative error of the spectral radius, which suffices for a curve over epochs.
_TOL = 1e-2


class EquilibriumDiagnostics(keras.callbacks.Callback):
    """Logs the spectral radius and the norm of df/dz during training.

    Solves the same inputs at the end of epochs and measures the Jacobian at their
    equilibria. Adds the means over the samples to the logs, and so to `History`, CSV
    files and TensorBoard if their callbacks follow this one:

    - `{layer}_spectral_radius`, the largest absolute eigenvalue. Above 1, an
      equilibrium repels plain iteration, and the implicit gradient is unreliable. The
      mean covers samples with a converged estimate, and is NaN without any.
    - `{layer}_spectral_radius_converged`, the fraction of these samples.
    - `{layer}_jacobian_norm`, the Frobenius norm over sqrt(dimensions of the state).
    - `{layer}_state_spread`, the distance of the equilibria from their mean over the
      samples, relative to their norm: sqrt(sum |z - mean(z)|^2 / sum |z|^2), without
      padding. Near 0, the states do not depend on the inputs, and nothing after the
      layer can tell samples apart. Warns once if it is below 3 % although the inputs of
      the layer differ.

    An epoch costs `max_iter` evaluations and at most `num_iterations + 16`
    vector-Jacobian products.

    At the end of a training with a gradient of plain steps, such as the default, warns
    if the layer's budget once more changes the equilibria by more than 5 % in the mean:
    then scores depend on the budget. With a gradient at the equilibrium, warns if the
    log `{layer}_loss_error` is above 2 % of the loss: then they depend on the
    tolerance.

    Args:
        model: The trained model, functional or sequential with one `DEQ` layer, or its
            `DEQ` layer.
        inputs: Inputs of `model`, such as arrays: a few samples to measure. Or a
            function without arguments that returns them, for example encoded by the
            current weights for a `DEQ` layer.
        max_iter: Positive integer. Budget of evaluations of the solve. Defaults to
            `30`.
        num_iterations: Positive integer. Maximum iterations of the estimate of the
            spectral radius, which converges at an error of about 1 %; see
            `deq_keras.diagnostics.spectral_radius`. Defaults to `100`.
        freq: Positive integer. Interval of epochs between measurements, starting with
            the first epoch. Logs of other epochs lack these keys. Defaults to `1`.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4), name="deq")
    >>> inputs = keras.Input((3,))
    >>> model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    >>> model.compile("adam", "mse")
    >>> x = np.ones((8, 3), "float32")
    >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[
    ...     EquilibriumDiagnostics(model, x[:2])]).history
    >>> 0 < history["deq_spectral_radius"][0] < 1
    True

    Reference:
        [Bai, Koltun and Kolter, 2021](https://arxiv.org/abs/2106.14342), figure 1.
    """

    def __init__(
        self,
        model: keras.layers.Layer,
        inputs: Nest | Callable[[], Nest],
        max_iter: int = 30,
        num_iterations: int = 100,
        freq: int = 1,
    ) -> None:
        super().__init__()
        if inputs is None:
            raise ValueError(
                "`inputs` must be inputs of `model`, such as arrays, or a function "
                "that returns them. Received: inputs=None."
            )
        self.layer = single_layer(model)
        self.subject = model  # Keras sets `model` to the trained model.
        self.inputs = inputs
        self.max_iter = check_count("max_iter", max_iter)
        self.num_iterations = check_count("num_iterations", num_iterations)
        self.freq = check_count("freq", freq)
        self._measure: Any = None
        self._solver: Any = None
        self._has_warned = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._solver = None
        self._has_warned = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch % self.freq != 0:
            return
        if self._solver is not self.layer.solver:  # Replaced, as by StepSizeTuning.
            self._solver = self.layer.solver
            self._measure = compile_function(self._measurements, reduce_retracing=True)
        with full_float32():
            measurements, input_spread = self._measure(*self._layer_inputs())
        prefix = self.layer._metrics_of_solves.prefix
        for name, value in measurements.items():
            logs[f"{prefix}_{name}"] = float(value)
        spread = float(measurements["state_spread"])
        is_small = spread < _SMALLEST_SPREAD and input_spread > _SPREAD_OF_INPUTS
        if is_small and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"The states of the layer {self.layer.name!r} hardly depend on the "
                f"inputs: those of different samples differ by {spread:.1%} of their "
                f"norm, and the inputs of the layer by {float(input_spread):.0%}. A "
                "small residual does not show this. If the cell normalizes its state, "
                "normalize the inputs of the layer, too, for example with "
                "LayerNormalization; else use a smaller learning rate.",
                stacklevel=2,
            )

    def on_train_end(self, logs: Any = None) -> None:
        layer, logs = self.layer, logs or {}
        error = logs.get(f"{layer._metrics_of_solves.prefix}_loss_error", 0.0)
        loss = logs.get("loss", math.inf)
        if error > _LARGEST_ERROR * abs(loss):
            warnings.warn(
                f"The solves of the layer {layer.name!r} stop too early for this loss: "
                f"their residuals change {loss:.2g} by about {error:.2g}. "
                "Scores then depend on the tolerance. Train with a smaller one, or a "
                f"larger budget. Received: solver={layer.solver!r}.",
                stacklevel=2,
            )
        # Unrolled steps are trained for their budget only.
        if layer.gradient.uses_solver:
            return
        change = float(compile_function(self._change)(*self._layer_inputs()))
        if change > _LARGEST_CHANGE:
            budget = layer.solver.max_iter
            warnings.warn(
                f"The state of the layer {layer.name!r} still moves at its budget of "
                f"{budget} evaluations: {2 * budget} evaluations change it by "
                f"{change:.0%}, the mean over the inputs of EquilibriumDiagnostics. "
                "Scores then depend on the budget: callbacks.BudgetSelection measures "
                "them at several. More updates or TruncatedGradient(free_fraction=0.6) "
                f"let the state settle. Received: gradient={layer.gradient!r}.",
                stacklevel=2,
            )

    def _layer_inputs(self) -> tuple[Nest, Nest]:
        """Returns the inputs of the layer as tensors, and their masks."""
        inputs = self.inputs() if callable(self.inputs) else self.inputs
        inputs = encoder(self.subject)(inputs)
        masks = keras_masks(inputs)  # A compiled function drops them.
        return tree.map_structure(tf.convert_to_tensor, inputs), masks

    def _change(self, inputs: Nest, masks: Nest) -> tf.Tensor:
        """Returns |z' - z| / |z'| for z at the budget of the layer and z' after the
        same budget once more, the mean over the samples that did not fail."""
        layer, solver = self.layer, self.layer.solver
        problem = layer.problem(inputs, masks)
        near = solver.solve(problem, layer.request(problem))
        far = solver.solve(problem, layer.request(problem, SolveRequest(near.value)))
        structure = StateStructure(far.value)
        one, other = structure.to_matrix(near.value), structure.to_matrix(far.value)
        changes = tf.math.divide_no_nan(row_norms(other - one), row_norms(other))
        # The state of a failed sample is its last finite one.
        is_failed = (near.status == DIVERGED) | (far.status == DIVERGED)
        changes = nonfinite.nan_where(is_failed, changes)
        total, count = nonfinite.finite_total(changes, changes.dtype.name)
        return tf.math.divide_no_nan(total, count)

    def _measurements(
        self, inputs: Nest, masks: Nest
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        solution, linearization = linearize_solution(
            self.layer, inputs, self.max_iter, masks
        )
        is_counted = tf.not_equal(solution.status, DIVERGED)
        radius = spectral_radius(linearization, max_iter=self.num_iterations, tol=_TOL)
        norm = jacobian_norm(linearization)
        state_size = tf.add_n(
            [tf.size(leaf) for leaf in tf.nest.flatten(solution.point)]
        ) / tf.size(norm)
        # Samples with non-finite inputs do not count. Without others, a mean is 0 / 0,
        # which is NaN.
        norms, num_norms = nonfinite.finite_total(norm, norm.dtype.name)
        found = tf.cast(radius.converged, norm.dtype)
        total = tf.reduce_sum(tf.where(radius.converged, radius.value, 0.0))
        measurements = {
            "spectral_radius": total / tf.reduce_sum(found),
            "spectral_radius_converged": tf.reduce_mean(found),
            "jacobian_norm": norms
            / num_norms
            / tf.cast(tf.sqrt(state_size), norm.dtype),
            "state_spread": _spread(solution.point, is_counted, linearization.mask),
        }
        return measurements, _spread(inputs, is_counted, None)


def _spread(nest: Nest, is_counted: tf.Tensor, mask: Nest) -> tf.Tensor:
    """Returns the distance of samples from their mean, relative to their norm."""
    distance = norm = 0.0
    for leaf in tree.flatten(nest):
        if leaf is None:
            continue
        leaf = tf.cast(leaf, tf.float32)
        weight = where_rows(is_counted, 1.0, tf.zeros_like(leaf))
        if mask is not None:
            weight = zero_padding(weight, mask)
        leaf = tf.where(weight > 0, leaf, 0.0)
        count = tf.reduce_sum(weight, axis=0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(leaf, axis=0), count)
        distance += tf.reduce_sum(weight * (leaf - mean) ** 2)
        norm += tf.reduce_sum(leaf**2)
    return tf.sqrt(distance / norm)
