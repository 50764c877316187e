"""A training budget that falls while the score holds."""

import math

import keras

from deq_keras.core.checks import (
    check_choice,
    check_count,
    check_integer,
    check_non_negative,
)


class ReduceTrainingBudget(keras.callbacks.Callback):
    """Lowers the budget of training steps while a score holds, and raises it otherwise.

    After each epoch, the budget is multiplied by `factor` if the monitored score is at
    most `tolerance` worse than the best so far, and divided by `factor` if it is worse
    than that. The new budget applies at once, without compiling, and is saved with the
    weights (`DEQ.training_budget`). Inference keeps the budget of the solver. Logs the
    budget as `{layer}_training_budget`.

    Args:
        layer: `DEQ` layer of the model.
        monitor: String. Name of the score in the logs. Defaults to `"val_loss"`.
        mode: `"min"` or `"max"`: whether a lower or a higher score is better. Defaults
            to `"min"`.
        tolerance: Float >= 0. By how much a score that holds may be worse than the
            best, relative to the best. Defaults to `0.01`.
        factor: Float in (0, 1). Defaults to `0.8`.
        min_budget: Positive integer. Smallest budget. Defaults to `4`.
        start_from_epoch: Integer >= 0. Epochs before the first change. Defaults to `0`.

    Raises:
        ValueError: For an argument out of range, and after the first epoch if `monitor`
            is not in the logs.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4), name="deq")
    >>> model = keras.Sequential([layer, keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> x = np.ones((8, 3), "float32")
    >>> callback = deq_keras.callbacks.ReduceTrainingBudget(layer, monitor="loss")
    >>> model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[callback]).history[
    ...     "deq_training_budget"]
    [24, 19]
    """

    def __init__(
        self,
        layer,
        monitor="val_loss",
        mode="min",
        tolerance=0.01,
        factor=0.8,
        min_budget=4,
        start_from_epoch=0,
    ):
        super().__init__()
        self.layer = layer
        self.monitor = monitor
        self.mode = check_choice("mode", mode, ("min", "max"))
        self.tolerance = check_non_negative("tolerance", tolerance)
        self.factor = check_non_negative("factor", factor)
        if not 0 < factor < 1:
            raise ValueError(
                f"`factor` must be a number in (0, 1). Received: factor={factor!r}."
            )
        self.min_budget = check_count("min_budget", min_budget)
        self.start_from_epoch = check_integer("start_from_epoch", start_from_epoch, 0)

    def on_train_begin(self, logs=None):
        self._best = None
        if self.layer.training_budget is None:
            self.layer.training_budget = self.layer.solver.max_iter

    def on_epoch_end(self, epoch, logs=None):
        if self.monitor not in logs:
            raise ValueError(
                "`monitor` must be the name of a score in the logs. Expected one of "
                f"{sorted(logs)}. Received: monitor={self.monitor!r}."
            )
        holds = self._holds(float(logs[self.monitor]))
        budget, max_iter = self.layer.training_budget, self.layer.solver.max_iter
        if epoch >= self.start_from_epoch:
            smallest = min(self.min_budget, max_iter)
            lower = max(math.floor(budget * self.factor), smallest)
            higher = min(math.ceil(budget / self.factor), max_iter)
            budget = min(budget, lower) if holds else higher
            self.layer.training_budget = budget
        logs[f"{self.layer.name}_training_budget"] = budget

    def _holds(self, score):
        """Returns whether a score holds, and remembers the best one."""
        if math.isnan(score):
            return False  # It must not become the best score.
        sign = 1.0 if self.mode == "min" else -1.0
        if self._best is None:
            self._best = score
        worse = sign * (score - self._best)
        self._best = sign * min(sign * score, sign * self._best)
        return worse <= self.tolerance * abs(self._best)
