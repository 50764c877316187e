"""The metrics of an equilibrium layer."""

import itertools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from deq_keras import gradients, solvers
from deq_keras.core import nonfinite, replicas
from deq_keras.core.graphs import is_in_control_flow, stateless_scope
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.layers.equilibrium.defaults import takes_plain_steps
from deq_keras.metrics import GradientError, StepMean


class SolveMetrics:
    """The metrics of a `DEQ` layer, which Keras shows in the logs.

    Args:
        layer: The `DEQ` layer.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = weakref.ref(layer)
        # Paths of variables must be unique in a model, and the same in each process.
        with keras.name_scope(layer.name):
            self.evaluations = StepMean("evaluations")
            self.residual = StepMean("residual")
            self.converged = StepMean("converged")
            self.failed = StepMean("failed")
            self.adjoint_evaluations = StepMean("adjoint_evaluations")
            self.adjoint_residual = StepMean("adjoint_residual")
            self.gradient_error = GradientError("gradient_error")
            self.loss_error = StepMean("loss_error")
            self.penalty = StepMean("penalty")
        self._model: Any = None
        self._checked_components: Any = None
        self._name(layer.name)
        for metric in self._all():
            metric.is_updated = False  # No step has been traced.

    def _all(self) -> list[StepMean]:
        return [one for one in vars(self).values() if isinstance(one, StepMean)]

    def logged(self) -> list[keras.metrics.Metric]:
        """Returns the metrics of the layer's components."""
        solve = [self.evaluations, self.residual, self.converged, self.failed]
        return [*solve, *self._of_training()]

    def _of_training(self) -> list[keras.metrics.Metric]:
        """Returns the metrics that are 0 in evaluations."""
        layer: Any = self._layer()
        metrics: list[keras.metrics.Metric] = []
        if layer.gradient.has_adjoint:
            metrics += [self.adjoint_evaluations, self.adjoint_residual]
            if layer.gradient.assumes_convergence:
                metrics.append(self.gradient_error)
            # In float16, loss scaling multiplies the gradients, and so the estimate,
            # by a factor that the layer does not know.
            if layer.compute_dtype != "float16":
                metrics.append(self.loss_error)
        if layer.regularizer is not None:
            metrics.append(self.penalty)
        return metrics

    def record(self, solution: solvers.Solution, training: bool) -> None:
        """Adds the samples of a solve.

        Args:
            solution: The `Solution`.
            training: Boolean.
        """
        layer: Any = self._layer()
        self._name_after_model(layer)
        # A model whose `call` is a `tf.function` can reuse in each step what Keras
        # traced when it inferred shapes, in a scope that drops updates. A scope that
        # has the value of a metric keeps them, as in `stateless_call`.
        scope, count = stateless_scope(), self.evaluations.count
        has_effect = scope is None or scope.get_current_value(count) is not None
        # TensorFlow cannot record the adjoint in a loop.
        has_adjoint = has_effect and not (training and is_in_control_flow())
        for metric in self._all():
            metric.is_updated = has_effect
        for metric in (
            self.adjoint_evaluations,
            self.adjoint_residual,
            self.gradient_error,
            self.loss_error,
        ):
            metric.is_updated = has_adjoint
        self.evaluations.update_state(solution.num_evaluations)
        self.residual.update_state(solution.residual)
        self.converged.update_state(tf.equal(solution.status, solvers.CONVERGED))
        self.failed.update_state(tf.equal(solution.status, solvers.DIVERGED))
        if training:
            self._warn_if_unlike(layer, solution)
            return
        # An evaluation has neither a penalty nor a backward pass. It logs zeros, so
        # that training and validation log the same names.
        for metric in self._of_training():
            zeros = (0.0, 0.0) if metric is self.gradient_error else (0.0,)
            metric.update_state(*zeros)

    @property
    def record_adjoint(self) -> Callable[[gradients.AdjointReport], None]:
        """A function that adds the samples of an adjoint solve.

        Gradient functions of a graph hold it, and must not keep the metrics alive.
        """
        metrics = weakref.ref(self)

        def record(report: gradients.AdjointReport) -> None:
            found = metrics()
            if found is not None:
                found._add_adjoint(report)

        return record

    def _add_adjoint(self, report: gradients.AdjointReport) -> None:
        solution = report.solution
        self.adjoint_evaluations.update_state(solution.num_evaluations)
        self.adjoint_residual.update_state(solution.residual)
        self.gradient_error.update_state(report.forward_error, report.adjoint_error)
        errors = tf.abs(report.loss_error)
        total, _ = nonfinite.finite_total(errors, self.loss_error.dtype)
        # Keras divides the loss of a replica by the number of replicas.
        self.loss_error.update_state(total * replicas.count(self.loss_error.total))

    def _name_after_model(self, layer: Any) -> None:
        """Names the metrics after the layer; with a number if others in the model have
        its name.

        Keras merges the logs of all layers, so that equal names would hide a layer.
        """
        model = layer._get_call_context().entry_layer
        if model is None or (self._model is not None and self._model() is model):
            return
        self._model = weakref.ref(model)
        layers = equilibrium_layers(model)
        names = [one.name for one in layers]
        before = itertools.takewhile(lambda one: one is not layer, layers)
        index = sum(one.name == layer.name for one in before)
        numbered = (f"{layer.name}_{i}" for i in itertools.count(2))
        free = (name for name in numbered if name not in names)
        others = itertools.islice(free, index - 1, None) if index else iter(())
        self._name(next(others, layer.name))

    def _name(self, prefix: str) -> None:
        for suffix, metric in vars(self).items():
            if isinstance(metric, StepMean):
                metric.name = f"{prefix}_{suffix}"

    def _warn_if_unlike(self, layer: Any, solution: solvers.Solution) -> None:
        """Warns if the steps of training and the solver compute different functions."""
        components = (layer.gradient, layer.solver)
        if layer.gradient.uses_solver or self._checked_components == components:
            return
        self._checked_components = components
        name, solver = type(layer.gradient).__name__, layer.solver
        fewest = layer.gradient.fewest_steps(solution.point, solver)
        if not takes_plain_steps(solver):
            cause = "and ignores the solver, which predict uses"
        elif fewest > solver.max_iter:
            cause = f"at least {fewest} of them, more than the solver's budget"
        else:
            return
        warnings.warn(
            f"The layer {layer.name!r} computes different functions in fit and "
            f"predict: {name} takes plain steps of f, {cause}. Use gradient='neumann' "
            "or 'unrolled', which train what the solver computes, or "
            "FixedPointIteration with a larger `max_iter` as the solver. Received: "
            f"solver={solver!r}, gradient={layer.gradient!r}.",
            stacklevel=2,
        )
