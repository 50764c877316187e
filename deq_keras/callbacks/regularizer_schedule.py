"""A penalty that changes with the training step."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from deq_keras.layers import DEQ

_CONTROLS = {"factor": "penalty_factor", "probability": "penalty_probability"}


class RegularizerSchedule(keras.callbacks.Callback):
    """Sets the weight and the probability of a penalty before every training step.

    The model must be compiled with `steps_per_execution=1`, Keras' default. Compiles
    the training step once. The step is the optimizer's, so a resumed training continues
    the schedule. Logs the values of the last step of an epoch as
    `{layer}_penalty_factor` and `{layer}_penalty_probability`. After training, the
    layer keeps the last values; see `DEQ.penalty_factor`.

    Args:
        layer: `DEQ` layer of the model, with a regularizer.
        factor: A `keras.optimizers.schedules.LearningRateSchedule`, or another function
            of the step, whose value >= 0 multiplies the penalty. For a regularizer of
            weight 1, this is the weight. Defaults to `None`, no factor.
        probability: The same for the fraction of steps that add the penalty, in [0, 1].
            Defaults to `None`, the `probability` of the regularizer.

    Raises:
        ValueError: If the regularizer of the layer is `None`, if the arguments are not
            functions, and in training for values out of range and for a model with
            several steps per execution.

    Example:

    >>> layer = deq_keras.layers.DEQ(
    ...     deq_keras.layers.DenseCell(4), regularizer="jacobian", name="deq")
    >>> model = keras.Sequential([layer, keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> x = np.ones((8, 3), "float32")
    >>> rising = keras.optimizers.schedules.PolynomialDecay(0.5, 4, 2.5)
    >>> schedule = deq_keras.callbacks.RegularizerSchedule(layer, factor=rising)
    >>> model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[schedule]
    ...     ).history["deq_penalty_factor"]
    [1.0, 2.0]

    Reference:

    - Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian Regularization",
      section 4, which increases the weight or the probability during training.
    """

    def __init__(
        self,
        layer: DEQ,
        factor: Callable[[Any], Any] | None = None,
        probability: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        if layer.regularizer is None:
            raise ValueError(
                "RegularizerSchedule needs a layer with a regularizer, such as "
                "regularizer='jacobian'. Received: regularizer=None."
            )
        schedules = {"factor": factor, "probability": probability}
        self.schedules = {
            _CONTROLS[name]: schedule
            for name, schedule in schedules.items()
            if schedule is not None
        }
        if not self.schedules or not all(map(callable, self.schedules.values())):
            raise ValueError(
                "`factor` or `probability` must be a function of the step, such as a "
                "`keras.optimizers.schedules.LearningRateSchedule`. Received: "
                f"factor={factor!r}, probability={probability!r}."
            )
        self.layer = layer

    def on_train_begin(self, logs: Any = None) -> None:
        steps = self.model.steps_per_execution
        if steps != 1:
            # Keras calls callbacks once per execution.
            raise ValueError(
                "RegularizerSchedule sets its values before every training step. "
                "Compile the model with steps_per_execution=1. Received: "
                f"steps_per_execution={steps}."
            )
        # A new probability adds a variable.
        is_new = any(getattr(self.layer, name) is None for name in self.schedules)
        self._set()
        if is_new:  # An earlier trace does not read the new variables.
            self.model.make_train_function(force=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._set()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        prefix = self.layer._metrics_of_solves.prefix
        for name in self.schedules:
            logs[f"{prefix}_{name}"] = getattr(self.layer, name)

    def _set(self) -> None:
        # A variable of a strategy does not act as a number in Python.
        step = int(tf.convert_to_tensor(self.model.optimizer.iterations))
        for name, schedule in self.schedules.items():
            setattr(self.layer, name, float(schedule(step)))
