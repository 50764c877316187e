"""A model that warns of solves that did not converge."""

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_positive
from deq_keras.core.structure import Nest
from deq_keras.layers import DEQ
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.solvers import DIVERGED


class MonitoredModel(keras.Model):
    """Warns of samples without an equilibrium, in `predict` and in eager calls.

    Solves at inference never raise: a sample that did not converge within the budget
    has the output of its best state, even if f expands and this state is meaningless.
    `fit` and `evaluate` log residuals; this model reports them elsewhere. It computes
    what `model` computes, with the same weights, and can be discarded at any time.

    Args:
        model: Model with `DEQ` layers.
        largest_residual: Positive float. Residual above which to warn of a sample.
            Defaults to `0.1`.

    Attributes:
        solves: Dict from the name of each `DEQ` layer to a dict of NumPy arrays
            `(samples,)`: `"status"` and `"residual"` in the last `predict` or eager
            call. If a model calls a layer several times, of the last of these calls.
            The second of several layers with one name is `NAME_2`.

    Raises:
        ValueError: If the model contains no `DEQ` layer, and in a call if it calls one
            in a function or loop of its own, as `TimeDistributed` does.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16), name="deq")
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> monitored = deq_keras.models.MonitoredModel(model)
    >>> monitored.predict(np.ones((2, 3), "float32"), verbose=0).shape
    (2, 1)
    >>> monitored.solves["deq"]["status"]
    array([0, 0], dtype=int32)
    """

    def __init__(
        self, model: keras.Model, largest_residual: float = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.largest_residual = check_positive("largest_residual", largest_residual)
        self.solves: dict[str, dict[str, np.ndarray]] = {}
        layers = equilibrium_layers(model)
        if not layers:
            raise ValueError(
                f"`model` must contain a DEQ layer. Received: model={model!r}."
            )
        self._equilibria: dict[str, DEQ] = {}
        for layer in layers:
            name, i = layer.name, 1
            while name in self._equilibria:
                name, i = f"{layer.name}_{i + 1}", i + 1
            self._equilibria[name] = layer

    def call(self, inputs: Nest, training: bool = False) -> Nest:
        outputs = self.model(inputs, training=training)
        if tf.executing_eagerly():
            self._report(self._results())
        return outputs

    def predict_step(self, data: Any) -> tuple[Nest, Nest]:
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.model(inputs, training=False), self._results()

    def predict(self, *args: Any, **kwargs: Any) -> Nest:
        outputs, results = super().predict(*args, **kwargs)
        self._report(results)
        return outputs

    def predict_on_batch(self, x: Nest) -> Nest:
        outputs, results = super().predict_on_batch(x)
        self._report(results)
        return outputs

    def _results(self) -> dict[str, dict[str, tf.Tensor]]:
        return {
            name: {"status": layer.last_status, "residual": layer.last_residual}
            for name, layer in self._equilibria.items()
        }

    def _report(self, results: dict[str, dict[str, Any]]) -> None:
        self.solves = tree.map_structure(np.asarray, results)
        for name, found in self.solves.items():
            residual = found["residual"]
            has_failed = ~(residual <= self.largest_residual)
            has_failed |= found["status"] == DIVERGED
            if has_failed.any():
                warnings.warn(
                    f"The layer {name!r} has no equilibrium for {has_failed.sum()} of "
                    f"{has_failed.size} samples: their relative residuals are up to "
                    f"{residual[has_failed].max():.2g} at the end of the budget. Their "
                    "outputs may be meaningless. See the samples in `solves`; use a "
                    "larger `max_iter`, another solver, or a cell that contracts.",
                    stacklevel=3,
                )
