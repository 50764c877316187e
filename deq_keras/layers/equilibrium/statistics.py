"""The metrics of an equilibrium layer."""

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import record

from deq_keras import gradients, solvers
from deq_keras.core import nonfinite, replicas
from deq_keras.core.graphs import innermost_function, is_being_traced
from deq_keras.metrics import GradientError, RunningMean, StepMean


class RecordsSolves:
    """Mixin of `DEQ`: metrics that Keras shows in the logs, and the last status.

    The metrics are attributes of the layer, because Keras tracks only attributes.
    """

    def _create_metrics(self) -> None:
        self._last = threading.local()
        self._weak_record_adjoint = _weak(self._record_adjoint)
        self._evaluations = StepMean(f"{self.name}_evaluations")
        self._steps = StepMean(f"{self.name}_steps")
        self._residual = RunningMean(f"{self.name}_residual")
        self._converged = RunningMean(f"{self.name}_converged")
        self._adjoint_evaluations = StepMean(f"{self.name}_adjoint_evaluations")
        self._adjoint_residual = StepMean(f"{self.name}_adjoint_residual")
        self._gradient_error = GradientError(name=f"{self.name}_gradient_error")
        self._loss_error = StepMean(f"{self.name}_loss_error")
        self._penalty = StepMean(f"{self.name}_penalty")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        metrics = [self._evaluations, self._residual, self._converged]
        if not self.gradient.uses_solver:
            metrics.append(self._steps)
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
        return metrics + self.cell.metrics

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
        takes_steps = bool(training) and not self.gradient.uses_solver
        self._steps.is_updated = takes_steps
        self._evaluations.is_updated = not takes_steps
        for metric in (
            self._adjoint_evaluations,
            self._adjoint_residual,
            self._gradient_error,
            self._loss_error,
            self._penalty,
        ):
            metric.is_updated = bool(training)
        if training is None:
            self._warn_if_trained()
            return
        count = self._steps if takes_steps else self._evaluations
        count.update_state(solution.num_evaluations)
        self._residual.update_state(solution.residual)
        self._converged.update_state(tf.equal(solution.status, solvers.CONVERGED))

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


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that calls a method, but does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        method = reference()
        if method is not None:
            method(*args)

    return call
