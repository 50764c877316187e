"""The metrics of an equilibrium layer."""

import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from tensorflow.python.eager import record

from deq_keras import gradients, solvers
from deq_keras.core import nonfinite, replicas
from deq_keras.core.graphs import innermost_function, is_being_traced
from deq_keras.layers.equilibrium.components import takes_plain_steps
from deq_keras.metrics import GradientError, RunningMean
from deq_keras.metrics.means import WatchedMean


class RecordsSolves:
    """Mixin of `DEQ`: metrics that Keras shows in the logs, and the last status.

    The metrics are attributes of the layer, because Keras tracks only attributes.
    """

    def _create_metrics(self) -> None:
        self._last = threading.local()
        self._weak_record_adjoint = _weak(self._record_adjoint)
        self._evaluations = RunningMean()
        self._residual = RunningMean()
        self._converged = RunningMean()
        self._adjoint_evaluations = RunningMean()
        self._adjoint_residual = RunningMean()
        self._gradient_error = GradientError()
        self._loss_error = RunningMean()
        self._penalty = RunningMean()
        self._lost = LostEquilibrium(self)
        self._name_metrics(self.name)
        self._checked_components: Any = None

    def _name_metrics(self, prefix: str) -> None:
        for suffix in (
            "evaluations",
            "residual",
            "converged",
            "adjoint_evaluations",
            "adjoint_residual",
            "gradient_error",
            "loss_error",
            "penalty",
        ):
            getattr(self, f"_{suffix}").name = f"{prefix}_{suffix}"

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        solve = [self._evaluations, self._residual, self._converged, self._lost]
        return solve + self._training_metrics() + self.cell.metrics

    def _training_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the metrics that are 0 in evaluations."""
        metrics = []
        if self.gradient.has_adjoint:
            metrics += [self._adjoint_evaluations, self._adjoint_residual]
            if self.gradient.assumes_convergence:
                metrics.append(self._gradient_error)
            # In float16, loss scaling multiplies the gradients, and so the estimate,
            # by a factor that the layer does not know.
            if self.compute_dtype != "float16":
                metrics.append(self._loss_error)
        if self.regularizer is not None:
            metrics.append(self._penalty)
        return metrics

    @property
    def last_status(self) -> tf.Tensor:
        """Status of each sample in the last call of the layer in this thread.

        Int32 tensor `(batch,)` of `deq_keras.solvers.CONVERGED`, `MAX_ITER`, `DIVERGED`
        and `UNCHANGED`. In a compiled function, read it there, after the call of the
        model: for example in `keras.Model.compute_loss`, to give failed samples a
        weight of zero.

        Raises:
            ValueError: If there was no call, or if the last call was made in a function
                that is not being traced now.
        """
        status = getattr(self._last, "status", None)
        graph = getattr(status, "graph", None)
        if status is None or (graph is not None and not is_being_traced(graph)):
            raise ValueError(
                "`last_status` needs a call of the layer before it, in the same thread "
                "and, if the call is compiled, in the same function. "
                f"Received: {status}."
            )
        return status

    def _record(self, solution: solvers.Solution, training: bool | None) -> None:
        self._last.status = solution.status
        if training is None:
            self._warn_if_trained()
            return
        self._name_metrics(self._prefix())
        self._evaluations.update_state(solution.num_evaluations)
        self._residual.update_state(solution.residual)
        self._converged.update_state(tf.equal(solution.status, solvers.CONVERGED))
        if training:
            self._warn_if_unlike(solution)
            self._lost.record(self, solution)
            return
        # An evaluation has neither a penalty nor a backward pass. It logs zeros, so
        # that training and validation log the same names.
        for metric in self._training_metrics():
            if metric is self._gradient_error:
                metric.update_state(0.0, 0.0)
            else:
                metric.update_state(0.0)

    def _prefix(self) -> str:
        """Returns the name of the layer; with a number if others in the model have it.

        Keras merges the logs of all layers, so that equal names would hide a layer.
        """
        model = self._get_call_context().entry_layer  # type: ignore[attr-defined]
        layers = [] if model is None else model._flatten_layers()
        layers = [layer for layer in layers if isinstance(layer, RecordsSolves)]
        names = [layer.name for layer in layers]
        index = sum(
            layer.name == self.name
            for layer in itertools.takewhile(lambda layer: layer is not self, layers)
        )
        numbered = (f"{self.name}_{i}" for i in itertools.count(2))
        free = (name for name in numbered if name not in names)
        return next(itertools.islice(free, index - 1, None)) if index else self.name

    def _warn_if_unlike(self, solution: solvers.Solution) -> None:
        """Warns if the steps of training and the solver compute different functions."""
        components = (self.gradient, self.solver)
        if self.gradient.uses_solver or self._checked_components == components:
            return
        self._checked_components = components
        name, solver = type(self.gradient).__name__, self.solver
        fewest = self.gradient.fewest_steps(solution.point, solver)
        if not takes_plain_steps(solver):
            cause = "and ignores the solver, which predict uses"
        elif fewest > solver.max_iter:
            cause = f"at least {fewest} of them, more than the solver's budget"
        else:
            return
        warnings.warn(
            f"The layer {self.name!r} computes different functions in fit and predict: "
            f"{name} takes plain steps of f, {cause}. Use gradient='neumann' or "
            "'unrolled', which train what the solver computes, or "
            "FixedPointIteration with a larger `max_iter` as the solver. Received: "
            f"solver={solver!r}, gradient={self.gradient!r}.",
            stacklevel=2,
        )

    def _warn_if_trained(self) -> None:
        """Warns of a training step of a model that cannot pass on `training`."""
        if innermost_function() is None or not record.could_possibly_record():
            return
        # Keras passes `training=True` to models whose call has the argument.
        model = self._get_call_context().entry_layer  # type: ignore[attr-defined]
        if isinstance(model, keras.Model) and not model._call_has_training_arg:
            warnings.warn(
                f"The layer {self.name!r} is differentiated, but runs as at inference, "
                "without its regularizer and its metrics, because the call of "
                f"{type(model).__name__} has no argument `training`. Write "
                "`def call(self, inputs, training=False)`; Keras then sets it in fit.",
                stacklevel=2,
            )

    def _record_adjoint(self, report: gradients.AdjointReport) -> None:
        solution = report.solution
        self._adjoint_evaluations.update_state(solution.num_evaluations)
        self._adjoint_residual.update_state(solution.residual)
        self._gradient_error.update_state(report.forward_error, report.adjoint_error)
        errors = tf.abs(report.loss_error)
        total, _ = nonfinite.finite_total(errors, self._loss_error.dtype)
        # Keras divides the loss of a replica by the number of replicas.
        self._loss_error.update_state(total * replicas.count(self._loss_error.total))


class LostEquilibrium(WatchedMean):
    """The fraction of training samples that are far from an equilibrium. Not logged.

    Args:
        layer: The `DEQ` layer.
    """

    # An exponentially growing state with the factor g has the residual 1 - 1 / g.
    _LARGEST_RESIDUAL = 0.3
    # Samples with fewer evaluations need not be at an equilibrium.
    _FEWEST_EVALUATIONS = 12

    def __init__(self, layer: Any) -> None:
        super().__init__(name=f"{layer.name}_lost")
        self._layer = weakref.ref(layer)

    def record(self, layer: Any, solution: solvers.Solution) -> None:
        """Adds the samples of a training step of the layer."""
        solver, gradient = layer.solver, layer.gradient
        has_tol = solver.tol if gradient.uses_solver else gradient.stops_early
        residual = solution.residual
        is_lost = tf.where(residual > self._LARGEST_RESIDUAL, 1.0, 0.0)
        is_judged = solution.num_evaluations >= self._FEWEST_EVALUATIONS
        # A residual of `stop_mode="rel_max"` may be large while information travels.
        is_judged &= bool(has_tol and solver.stop_mode == "rel")
        # The mean excludes NaN.
        is_lost = tf.where(is_judged, is_lost, float("nan"))
        self.update_state(tf.where(tf.math.is_finite(residual), is_lost, 1.0))

    def result(self) -> dict[str, Any]:
        super().result()
        return {}

    def message(self, mean: float) -> str | None:
        layer = self._layer()
        if layer is None:
            return None
        # NaN weights can hide: `relu` maps NaN to 0 on some devices.
        weights = layer.trainable_variables
        if not all(bool(ops.all(ops.isfinite(weight))) for weight in weights):
            found = "its weights are not finite after an epoch of training"
        elif mean > 0.5:
            found = (
                f"{mean:.0%} of the samples that took {self._FEWEST_EVALUATIONS} or "
                "more evaluations in an epoch of training ended with a relative "
                f"residual above {self._LARGEST_RESIDUAL} or not finite"
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


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that calls a method, but does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        method = reference()
        if method is not None:
            method(*args)

    return call
