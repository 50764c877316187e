"""The metrics of an equilibrium layer."""

import inspect
import itertools
import warnings
import weakref
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from deq_keras import gradients, solvers
from deq_keras.core import nonfinite, replicas
from deq_keras.core.graphs import (
    innermost_function,
    is_being_traced,
    is_in_control_flow,
)
from deq_keras.core.internals import (
    entry_layer,
    may_record_gradients,
    stateless_scope,
)
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.layers.equilibrium.defaults import Components, takes_plain_steps
from deq_keras.metrics.means import GradientError, StepMean, Sums

# Nine metrics, of which the gradient error has two parts.
_NUM_MEANS = 11


class LastSolve(NamedTuple):
    """Tensors `(batch,)` of the last call of a layer.

    Attributes:
        status: Int32 tensor, or `None` before the first call.
        residual: Float tensor, or `None`.
    """

    status: tf.Tensor | None = None
    residual: tf.Tensor | None = None

    def read(self, name: str) -> tf.Tensor:
        """Returns a tensor, if it can be used now."""
        tensor = getattr(self, name)
        graph = getattr(tensor, "graph", None)
        if tensor is None or (graph is not None and not is_being_traced(graph)):
            raise ValueError(
                f"`last_{name}` needs a call of the layer before it and, if the call "
                f"is compiled, in the same function. Received: {tensor}."
            )
        return tensor


class SolveMetrics:
    """The metrics of a `DEQ` layer, which Keras shows in the logs.

    Args:
        layer: The `DEQ` layer.

    Attributes:
        prefix: String. The name of the layer in the logs.
        record_adjoint: Function that adds the samples of an adjoint solve. Gradient
            functions of a graph hold it, and must not keep the metrics alive.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = weakref.ref(layer)
        metrics = weakref.ref(self)

        def record_adjoint(report: gradients.AdjointReport) -> None:
            owner = metrics()
            if owner is not None:
                owner._add_adjoint(report)

        self.record_adjoint = record_adjoint
        # Paths of variables must be unique in a model, and the same in each process.
        with keras.name_scope(layer.name):
            self._sums = sums = Sums(_NUM_MEANS, "float32")
        self.evaluations = StepMean("evaluations", sums=sums)
        self.residual = StepMean("residual", sums=sums)
        self.converged = StepMean("converged", sums=sums)
        self.failed = StepMean("failed", sums=sums)
        self.adjoint_evaluations = StepMean("adjoint_evaluations", sums=sums)
        self.adjoint_residual = StepMean("adjoint_residual", sums=sums)
        self.gradient_error = GradientError("gradient_error", sums=sums)
        self.loss_error = StepMean("loss_error", sums=sums)
        self.penalty = StepMean("penalty", sums=sums)
        # The variable of all metrics belongs to one of them, for Keras.
        self.evaluations.variable = sums.variable
        self._model: Any = None
        self._checked_components: Any = None
        self._name(layer.name)
        self._all = [one for one in vars(self).values() if isinstance(one, StepMean)]
        for metric in self._all:
            metric.is_updated = False  # No step has been traced.

    def to_log(self) -> list[StepMean]:
        """Returns the metrics of the layer's components."""
        solve = [self.evaluations, self.residual, self.converged, self.failed]
        return [*solve, *self._of_training()]

    def _of_training(self) -> list[StepMean]:
        """Returns the metrics that are 0 in evaluations."""
        layer: Any = self._layer()
        metrics: list[StepMean] = []
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

    def record(
        self,
        components: Components,
        solution: solvers.Solution,
        training: bool,
        penalty: tf.Tensor | None,
    ) -> None:
        """Adds the samples of a solve.

        Args:
            components: The `Components` of the layer.
            solution: The `Solution`.
            training: Boolean.
            penalty: Float scalar, or `None`.
        """
        layer: Any = self._layer()
        self._name_after_model(layer)
        # A model whose `call` is a `tf.function` can reuse in each step what Keras
        # traced when it inferred shapes, in a scope that drops updates. A scope that
        # has the value of a metric keeps them, as in `stateless_call`.
        scope, sums = stateless_scope(), self._sums.variable
        has_effect = scope is None or scope.get_current_value(sums) is not None
        # TensorFlow cannot record the adjoint in a loop.
        has_adjoint = has_effect and not (training and is_in_control_flow())
        for metric in self._all:
            metric.is_updated = has_effect
        for metric in (
            self.adjoint_evaluations,
            self.adjoint_residual,
            self.gradient_error,
            self.loss_error,
        ):
            metric.is_updated = has_adjoint
        status = solution.status
        additions = {
            **self.evaluations.additions(solution.num_evaluations),
            **self.residual.additions(solution.residual),
            **self.converged.additions(tf.equal(status, solvers.CONVERGED)),
            **self.failed.additions(tf.equal(status, solvers.DIVERGED)),
        }
        if penalty is not None:
            additions |= self.penalty.additions(penalty)
        # An evaluation has neither a penalty nor a backward pass. It logs zeros, so
        # that training and validation log the same names.
        for metric in () if training else self._of_training():
            zeros = (0.0, 0.0) if metric is self.gradient_error else (0.0,)
            additions |= metric.additions(*zeros)
        self._sums.add(additions)
        if training:
            self._warn_if_unlike(layer.name, components, solution)

    def _add_adjoint(self, report: gradients.AdjointReport) -> None:
        solution = report.solution
        errors = tf.abs(report.loss_error)
        total, _ = nonfinite.finite_total(errors, self.loss_error.dtype)
        # Keras divides the loss of a replica by the number of replicas.
        total *= replicas.count(self._sums.variable)
        errors = report.forward_error, report.adjoint_error
        self._sums.add(
            {
                **self.adjoint_evaluations.additions(solution.num_evaluations),
                **self.adjoint_residual.additions(solution.residual),
                **self.gradient_error.additions(*errors),
                **self.loss_error.additions(total),
            }
        )

    def _name_after_model(self, layer: Any) -> None:
        """Names the metrics after the layer; with a number if others in the model have
        its name.

        Keras merges the logs of all layers, so that equal names would hide a layer.
        """
        model = entry_layer(layer)
        if model is None or (self._model is not None and self._model() is model):
            return
        self._model = weakref.ref(model)
        layers = equilibrium_layers(model)
        names = [one.name for one in layers]
        before = itertools.takewhile(lambda one: one is not layer, layers)
        index = sum(one.name == layer.name for one in before)
        candidates = (f"{layer.name}_{i}" for i in itertools.count(2))
        free = (name for name in candidates if name not in names)
        others = itertools.islice(free, index - 1, None) if index else iter(())
        self._name(next(others, layer.name))

    def _name(self, prefix: str) -> None:
        self.prefix = prefix
        for suffix, metric in vars(self).items():
            if isinstance(metric, StepMean):
                metric.name = f"{prefix}_{suffix}"

    def warn_if_differentiated(self) -> None:
        """Warns of a training step of a model that cannot pass on `training`."""
        layer: Any = self._layer()
        if innermost_function() is None or not may_record_gradients():
            return
        # Keras passes `training=True` to models whose call has the argument.
        model = entry_layer(layer)
        if not isinstance(model, keras.Model):
            return
        if "training" not in inspect.signature(model.call).parameters:
            warnings.warn(
                f"The layer {layer.name!r} is differentiated, but runs as at "
                "inference, without its regularizer and its metrics, because the call "
                f"of {type(model).__name__} has no argument `training`. Write "
                "`def call(self, inputs, training=False)`; Keras then sets it in fit.",
                stacklevel=2,
            )

    def _warn_if_unlike(
        self, layer_name: str, components: Components, solution: solvers.Solution
    ) -> None:
        """Warns if the steps of training and the solver compute different functions."""
        gradient, solver = components.gradient, components.solver
        if gradient.uses_solver or self._checked_components == (gradient, solver):
            return
        self._checked_components = (gradient, solver)
        name = type(gradient).__name__
        fewest = gradient.fewest_steps(solution.point, solver)
        if not takes_plain_steps(solver):
            cause = "and ignores the solver, which predict uses"
        elif fewest > solver.max_iter:
            cause = f"at least {fewest} of them, more than the solver's budget"
        else:
            return
        warnings.warn(
            f"The layer {layer_name!r} computes different functions in fit and "
            f"predict: {name} takes plain steps of f, {cause}. Use gradient='neumann' "
            "or 'unrolled', which train what the solver computes, or "
            "FixedPointIteration with a larger `max_iter` as the solver. Received: "
            f"solver={solver!r}, gradient={gradient!r}.",
            stacklevel=2,
        )
