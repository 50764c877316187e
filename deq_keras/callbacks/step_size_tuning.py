"""Tuning of the step size of a splitting solver during training."""

from collections.abc import Callable
from typing import Any

import keras

from deq_keras.core.structure import Nest
from deq_keras.diagnostics.subject import single_layer
from deq_keras.layers import DEQ
from deq_keras.solvers import OperatorSplitting


class StepSizeTuning(keras.callbacks.Callback):
    """Tunes the step size of a monotone layer to minimize solver steps.

    Solves some samples at the end of every epoch with step sizes of 1, 1/2, 1/4 and so
    on, until the number of steps increases; see `MonotoneCell.tuned`. If the best step
    size has changed, replaces the layer's solver and retraces the training step. Logs
    the step size as `{layer}_alpha`.

    Args:
        layer: `DEQ` layer with a monotone cell and a splitting solver, or a model with
            one such layer.
        inputs: Function without arguments that returns inputs of `layer`: a few
            samples, encoded by the current weights.

    Raises:
        ValueError: If the solver of the layer is not a splitting solver.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.MonotoneDenseCell(4), name="deq")
    >>> model = keras.Sequential([layer, keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> x = np.ones((8, 3), "float32")
    >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[
    ...     deq_keras.callbacks.StepSizeTuning(layer, lambda: x[:2])]).history
    >>> layer.solver.alpha == history["deq_alpha"][-1]
    True

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", appendix.
    """

    def __init__(self, layer: DEQ, inputs: Callable[[], Nest]) -> None:
        super().__init__()
        layer = single_layer(layer)
        if not isinstance(layer.solver, OperatorSplitting):
            raise ValueError(
                "StepSizeTuning needs a layer whose solver has a step size, such as "
                f"'peaceman_rachford'. Received: solver={layer.solver!r}."
            )
        if not callable(inputs):
            raise ValueError(
                "`inputs` must be a function that returns the inputs of the layer. "
                f"Received: inputs={inputs!r}."
            )
        self.layer = layer
        self.inputs = inputs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        solver: Any = self.layer.solver
        tuned = self.layer.cell.tuned(solver, self.inputs())
        logs[f"{self.layer._metrics_of_solves.prefix}_alpha"] = tuned.alpha
        if tuned.alpha != solver.alpha:
            self.layer.solver = tuned
            self.model.make_train_function(force=True)
            self.model.make_test_function(force=True)
            self.model.make_predict_function(force=True)
