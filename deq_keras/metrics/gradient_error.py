"""The estimated error of implicit gradients, with a warning."""

import warnings

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_positive
from deq_keras.metrics.step_mean import StepMean


@keras.saving.register_keras_serializable(package="deq_keras")
class GradientError(StepMean):
    """The mean relative error of implicit gradients. Warns once if it is large.

    The implicit function theorem holds only at an equilibrium and for a solved adjoint
    equation. Otherwise implicit gradients are noise, which a loss curve does not show.
    A small residual does not bound the error of a slow solve: each step changes little,
    but many steps are missing. The metric therefore judges estimated errors. They lack
    the change of df/dz between the result and the equilibrium: the true error is often
    larger, and `deq_keras.diagnostics.gradient_quality` measures it. Keras resets
    metrics between epochs and before an evaluation, which is when the metric can warn.

    Args:
        threshold: Positive float. Mean relative error above which to warn. Defaults to
            `0.25`.
        name: String. Name of the metric. Defaults to `"gradient_error"`.
        dtype: Dtype of the result. Defaults to `"float32"`.
    """

    def __init__(self, threshold=0.25, name="gradient_error", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.threshold = check_positive("threshold", threshold)
        self._has_warned = False
        self.forward = StepMean("forward", dtype)
        self.adjoint = StepMean("adjoint", dtype)

    def update_state(self, forward_error, adjoint_error):
        """Adds the errors of a batch.

        Args:
            forward_error: Float scalar in [0, 1]. Relative error that the forward solve
                causes.
            adjoint_error: Float scalar in [0, 1]. The same for the adjoint solve.
        """
        super().update_state(1.0 - (1.0 - forward_error) * (1.0 - adjoint_error))
        self.forward.update_state(forward_error)
        self.adjoint.update_state(adjoint_error)

    def reset_state(self):
        # This is the first time after an epoch that Keras runs code of a layer. At the
        # end of an epoch, it runs only callbacks, which a layer cannot add. A compiled
        # step cannot raise Python warnings, and `result` also runs after every batch.
        if tf.executing_eagerly() and not self._has_warned and self._has_result():
            self._judge()
        super().reset_state()
        self.forward.reset_state()
        self.adjoint.reset_state()

    def get_config(self):
        return {**super().get_config(), "threshold": self.threshold}

    def _judge(self):
        error, forward, adjoint = (
            float(ops.convert_to_numpy(metric.result()))
            for metric in (self, self.forward, self.adjoint)
        )
        if error <= self.threshold:
            return
        self._has_warned = True
        warnings.warn(
            f"Implicit gradients were taken with an estimated error of {error:.0%} "
            f"({self.name}): {forward:.0%} from forward solves and {adjoint:.0%} from "
            "adjoint solves that stopped early, however small their residuals are. "
            "Give `solver` or ImplicitGradient(solver=...) a larger `max_iter` or a "
            "smaller `tol`, use an Anderson or Broyden solver, or train with "
            "gradient='truncated' or regularizer='contraction'.",
            stacklevel=2,
        )
