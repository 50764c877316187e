"""The step size of a splitting over the epochs of training."""

import keras

from deq_keras.solvers import OperatorSplitting


class StepSizeTuning(keras.callbacks.Callback):
    """Sets the step size of a monotone layer that minimizes solver steps.

    At the end of every epoch some samples are solved with step sizes of 1, 1/2, 1/4 and
    so on, as long as that helps; see `MonotoneCell.tuned`. Where the best one changed,
    the layer's solver is replaced, and the training step traced again. The step size
    joins the logs as `{layer}_alpha`.

    Args:
        layer: `DEQ` layer of a monotone cell whose solver is a splitting.
        inputs: Function without arguments that returns what `layer` is called with:
            a few samples, encoded by the current weights.

    Raises:
        ValueError: If the solver of the layer is none.

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

    def __init__(self, layer, inputs):
        super().__init__()
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

    def on_epoch_end(self, epoch, logs=None):
        solver = self.layer.solver
        tuned = self.layer.cell.tuned(solver, self.inputs())
        logs[f"{self.layer.name}_alpha"] = tuned.alpha
        if tuned.alpha != solver.alpha:
            self.layer.solver = tuned
            self.model.make_train_function(force=True)
            self.model.make_test_function(force=True)
