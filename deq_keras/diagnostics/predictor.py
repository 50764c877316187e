"""Outputs of a model at a budget of evaluations, with the solutions of its layers."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from deq_keras.core.graphs import compile_function
from deq_keras.core.internals import attach_masks, flatten_layers, keras_masks
from deq_keras.core.request import as_max_iter, as_tol
from deq_keras.core.structure import Nest
from deq_keras.layers import SolveScope
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.solvers import Solution


class Prediction(NamedTuple):
    """The result of a `Predictor`.

    Attributes:
        outputs: Nest of tensors. The outputs of the model.
        solutions: Dict from names to the `deq_keras.solvers.Solution` of each solve;
            see `deq_keras.layers.SolveScope`.
    """

    outputs: Nest
    solutions: dict[str, Solution]

    @property
    def solution(self) -> Solution:
        """The only solution.

        Raises:
            ValueError: If the model calls several `DEQ` layers, or one several times.
        """
        if len(self.solutions) != 1:
            raise ValueError(
                "`solution` needs a model with one call of one DEQ layer. Read "
                f"`solutions` instead. Received: solutions={list(self.solutions)}."
            )
        return next(iter(self.solutions.values()))


class Predictor:
    """Computes outputs and solutions of a model at any budget and tolerance.

    It calls the model in a `deq_keras.layers.SolveScope`, in a function that is
    compiled once for all budgets and tolerances. The outputs are therefore the outputs
    of `model.predict` in this scope.

    Args:
        model: A `keras.Model` that calls `DEQ` layers, or a `DEQ` layer.

    Call arguments:
        inputs: Inputs of the model.
        max_iter: Optional positive integer. Budget of each solve. Defaults to `None`,
            the budgets of the solvers.
        tol: Optional non-negative float. Tolerance of each solve. Defaults to `None`,
            the tolerances of the solvers.

    Returns:
        A `Prediction`.

    Raises:
        ValueError: If the model contains no `DEQ` layer.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])
    >>> predict = deq_keras.diagnostics.Predictor(model)
    >>> outputs, solutions = predict(np.ones((4, 3), "float32"), max_iter=5)
    >>> outputs.shape, int(solutions[deq.name].batch_evaluations) <= 5
    (TensorShape([4, 2]), True)
    """

    def __init__(self, model: keras.layers.Layer) -> None:
        self.model = model
        self._predict = compile_function(self._call, reduce_retracing=True)

    def __call__(
        self, inputs: Nest, max_iter: int | None = None, tol: float | None = None
    ) -> Prediction:
        # A Python number would be a new function for each budget.
        if max_iter is not None:
            max_iter = tf.convert_to_tensor(as_max_iter(max_iter))
        if tol is not None:
            tol = tf.convert_to_tensor(as_tol(tol))
        # Changed layers must not run the function of the previous ones.
        version = tuple(
            (one.quantization_mode, getattr(one, "lora_enabled", False))
            for one in flatten_layers(self.model)
        )
        version += tuple(layer.solver for layer in equilibrium_layers(self.model))
        masks = keras_masks(inputs)  # A compiled function drops them.
        return Prediction(*self._predict(inputs, masks, max_iter, tol, version))

    def _call(
        self, inputs: Nest, masks: Nest, max_iter: Any, tol: Any, version: tuple
    ) -> tuple[Nest, dict[str, Solution]]:
        del version
        attach_masks(inputs, masks)
        with SolveScope(self.model, max_iter, tol) as scope:
            outputs = self.model(inputs, training=False)
        return outputs, scope.solutions
