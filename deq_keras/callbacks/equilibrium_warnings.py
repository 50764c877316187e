"""Warnings of a training that a loss curve does not show."""

import warnings
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_positive
from deq_keras.diagnostics.subject import single_layer

# An exponentially growing state with the factor g has the residual 1 - 1 / g.
_LARGEST_RESIDUAL = 0.3
# Solves with fewer evaluations need not end at an equilibrium.
_FEWEST_EVALUATIONS = 12
# Models that learn can lose half of the samples in an epoch.
_FEWEST_CONVERGED = 0.25


class EquilibriumWarnings(keras.callbacks.Callback):
    """Warns of a layer without an equilibrium, and of gradients that are noise.

    Reads the metrics of the layer at the end of every epoch of training, at no cost,
    and warns once if

    - its weights are not finite, or more than three quarters of the samples do not
      converge in 12 or more evaluations and the mean relative residual is above 0.3:
      f then expands. A residual of `stop_mode="rel_max"` is not judged, which may be
      large while information travels;
    - the estimated relative error of implicit gradients is above `largest_error`; see
      `deq_keras.metrics.GradientError`.

    Args:
        model: The trained model with one `DEQ` layer, or the layer.
        largest_error: Positive float. Mean relative error of gradients above which to
            warn. Defaults to `0.25`.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> x = np.ones((8, 3), "float32")
    >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[
    ...     deq_keras.callbacks.EquilibriumWarnings(model)])
    """

    def __init__(self, model: keras.layers.Layer, largest_error: float = 0.25) -> None:
        super().__init__()
        self.layer = single_layer(model)
        self.largest_error = check_positive("largest_error", largest_error)
        self._has_judged = False
        self._given: set[str] = set()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._has_judged = False

    def on_test_begin(self, logs: Any = None) -> None:
        # A validation resets the metrics of the training epoch.
        self._judge()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._judge()

    def _judge(self) -> None:
        if self._has_judged:
            return
        self._has_judged = True
        for kind, find in (("equilibrium", self._divergence), ("noise", self._noise)):
            message = None if kind in self._given else find()
            if message is not None:
                self._given.add(kind)
                warnings.warn(message, stacklevel=2)

    def _divergence(self) -> str | None:
        layer, metrics = self.layer, self.layer._metrics_of_solves
        failed, residual = _mean(metrics.failed), _mean(metrics.residual)
        does_converge = _mean(metrics.converged) >= _FEWEST_CONVERGED
        is_judged = _mean(metrics.evaluations) >= _FEWEST_EVALUATIONS
        gradient, solver = layer.gradient, layer.solver
        has_tol = solver.tol if gradient.uses_solver else gradient.stops_early
        is_judged &= bool(has_tol and solver.stop_mode == "rel")
        # NaN weights can hide: `relu` maps NaN to 0 on some devices.
        weights = layer.trainable_variables
        if not all(bool(ops.all(ops.isfinite(weight))) for weight in weights):
            found = "its weights are not finite after an epoch of training"
        elif failed > 1 - _FEWEST_CONVERGED:
            found = f"f was not finite for {failed:.0%} of the samples of an epoch"
        elif is_judged and not does_converge and residual > _LARGEST_RESIDUAL:
            found = (
                f"an epoch of training ended its solves with a mean relative residual "
                f"of {residual:.2g}, and {_mean(metrics.converged):.0%} converged"
            )
        else:
            return None
        return (
            f"The layer {layer.name!r} has no equilibrium: {found}. A cell that "
            "expands causes this. If its initial weights expand, use an initializer "
            "with a smaller standard deviation, or `cell_from` of a "
            "SpectrallyNormalizedDense. If updates of many weights make it expand, use "
            "a tenth of the learning rate, or gradient='neumann' or 'implicit'. "
            "Clipping gradients does not help with Adam, whose updates do not depend "
            "on their scale. NaN weights stay NaN: build the model again."
        )

    def _noise(self) -> str | None:
        metric = self.layer._metrics_of_solves.gradient_error
        mean = _mean(metric)
        # Other gradients do not assume an exact equilibrium.
        if not self.layer.gradient.assumes_convergence or mean <= self.largest_error:
            return None
        forward, adjoint = map(_mean, (metric.forward, metric.adjoint))
        remedies = []
        if forward >= adjoint / 2:
            remedies.append(
                "give `solver` a larger `max_iter` or a smaller `tol`, or use an "
                "Anderson or Broyden solver"
            )
        if adjoint >= forward / 2:
            remedies.append("use ImplicitGradient(GMRES(max_iter=...)) with more steps")
        return (
            f"Implicit gradients were taken with an estimated error of {mean:.0%} "
            f"({metric.name}): {forward:.0%} from forward solves and {adjoint:.0%} "
            "from adjoint solves that stopped early, however small their residuals "
            f"are. To reduce it, {', and '.join(remedies)}. If that does not help, "
            "f hardly contracts: use regularizer='contraction' or gradient='neumann'."
        )


def _mean(metric: keras.metrics.Metric) -> float:
    """Returns the mean as a float, 0 without values."""
    total, count = map(tf.convert_to_tensor, (metric.total, metric.count))
    return float(tf.math.divide_no_nan(total, count))
