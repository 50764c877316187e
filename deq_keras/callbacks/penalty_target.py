"""A penalty whose weight follows a measurement."""

import math
from typing import Any

import keras

from deq_keras.core.checks import check_positive
from deq_keras.diagnostics.subject import single_layer
from deq_keras.layers import DEQ


class PenaltyTarget(keras.callbacks.Callback):
    """Moves the penalty factor of a layer until a logged metric meets its target.

    After each epoch, the factor is multiplied by `(metric / target)^rate`, by at least
    1/4 and at most 4. The penalty thus grows while the metric is above the target, and
    falls while it is below: it is only as strong as it must be. The new factor applies
    without compiling, and is saved with the weights (`DEQ.penalty_factor`). Logs the
    factor of the epoch as `{layer}_penalty_factor`.

    Args:
        layer: `DEQ` layer of the model, with a regularizer, or a model with one
            such layer.
        target: Positive float. The value of the metric to reach.
        monitor: String. Name of a positive metric in the logs that falls if the penalty
            grows. Defaults to `None`, the residual of the layer.
        rate: Positive float. Defaults to `0.5`.
        max_factor: Positive float. The factor stays between 1 / `max_factor` and
            `max_factor`. Defaults to `100.0`.

    Raises:
        ValueError: For an argument out of range, a layer without a regularizer, and
            after the first epoch if `monitor` is not in the logs.

    Example:

    >>> layer = deq_keras.layers.DEQ(
    ...     deq_keras.layers.DenseCell(4), regularizer="jacobian", name="deq")
    >>> model = keras.Sequential([layer, keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> x = np.ones((8, 3), "float32")
    >>> callback = deq_keras.callbacks.PenaltyTarget(layer, target=1e-9)
    >>> model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[callback]).history[
    ...     "deq_penalty_factor"]
    [1.0, 4.0]
    """

    def __init__(
        self,
        layer: DEQ | keras.Model,
        target: float,
        monitor: str | None = None,
        rate: float = 0.5,
        max_factor: float = 100.0,
    ) -> None:
        super().__init__()
        layer = single_layer(layer)
        if layer.regularizer is None:
            raise ValueError(
                "PenaltyTarget needs a layer with a regularizer, such as "
                "regularizer='jacobian'. Received: regularizer=None."
            )
        self.layer = layer
        self.target = check_positive("target", target)
        self.monitor = monitor
        self.rate = check_positive("rate", rate)
        self.max_factor = check_positive("max_factor", max_factor)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        prefix = self.layer._metrics_of_solves.prefix
        monitor = f"{prefix}_residual" if self.monitor is None else self.monitor
        if monitor not in logs:
            raise ValueError(
                "`monitor` must be the name of a metric in the logs. Expected one of "
                f"{sorted(logs)}. Received: monitor={monitor!r}."
            )
        factor = self.layer.penalty_factor
        logs[f"{prefix}_penalty_factor"] = factor
        metric = float(logs[monitor])
        if not math.isfinite(metric):
            return
        change = min(max((metric / self.target) ** self.rate, 0.25), 4.0)
        factor = min(max(factor * change, 1 / self.max_factor), self.max_factor)
        self.layer.penalty_factor = factor
