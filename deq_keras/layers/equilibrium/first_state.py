"""Where a solve of an equilibrium layer starts."""

from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras import initial_states
from deq_keras.core import nonfinite
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest, StateStructure, masked, where_rows
from deq_keras.layers.equilibrium import cell_check, cell_problem
from deq_keras.layers.equilibrium.cell_build import trace_and_build
from deq_keras.layers.equilibrium.known_inputs import KnowsInputs
from deq_keras.solvers import Solution


class StartsSolves(KnowsInputs):
    """Mixin of `DEQ`: its initial state, and the layer that may predict it."""

    _learned_state: list[keras.Variable] | None = None
    _predictor: keras.layers.Layer | None = None

    def _build_initial_state(self, inputs_shape: Nest, state: Nest) -> None:
        """Creates the weights of the state or of its predictor."""
        self._ranks = tuple(leaf.shape.rank for leaf in tree.flatten(state))
        if self.initial_state.initializer is not None:
            self._learned_state = _add_weights(self, state)
        predictor: Any = self._predictor
        if predictor is not None:
            inputs = self._input_specs(inputs_shape)
            trace_and_build(predictor, lambda inputs: predictor(inputs), inputs)

    def _prediction(self, inputs: Nest) -> Nest | None:
        if self._predictor is None:
            return None
        return self._predictor(tree.map_structure(tf.stop_gradient, inputs))

    def _first_state(
        self,
        problem: FixedPointProblem,
        initial_state: Nest | None,
        seed: tf.Tensor | None = None,
        training: bool = False,
        source: initial_states.InitialState | None = None,
    ) -> Nest:
        """Checks the cell; returns the state from which a solve starts.

        `source`, by default the layer's, applies if `initial_state` is `None`.
        """
        state = cell_problem.cell_state(self.cell, problem.injection)
        cell_check.check_cell(self, state, problem.injection, training)
        if initial_state is None:
            source = source or self.initial_state
            first = source(state, seed, self._learned_for(source, problem, state))
            StateStructure(state).check(first, f"The value of {source!r}")
            return masked(first, problem.mask)
        # The leaves of a state can have other dtypes than the layer.
        dtypes = [leaf.dtype for leaf in tree.flatten(state)]
        initial_state = cell_problem.cast_floating(
            self.cell.compute_dtype, initial_state, dtypes
        )
        initial_state = StateStructure(state).like(initial_state, "`initial_state`")
        return masked(nonfinite.usable_state(initial_state, state), problem.mask)

    def _learned_for(
        self,
        source: initial_states.InitialState,
        problem: FixedPointProblem,
        state: Nest,
    ) -> Nest | None:
        """Returns the weights or the prediction that `source` needs, or `None`.

        No gradient of the model's loss reaches the predictor.
        """
        if source.layer is None:
            return self._learned_state
        check_owned(self, source)
        prediction = getattr(problem, "prediction", None)
        if prediction is None:
            return None
        StateStructure(state).check(prediction, f"The output of {source.layer!r}")
        return tree.map_structure(tf.stop_gradient, prediction)

    def _add_prediction_loss(
        self, problem: FixedPointProblem, value: Nest, solution: Solution
    ) -> None:
        """Adds the mean squared distance of the prediction to the equilibrium."""
        structure = StateStructure(value)
        prediction: Any = getattr(problem, "prediction")
        target = structure.to_matrix(tree.map_structure(tf.stop_gradient, value))
        distance = target - structure.to_matrix(masked(prediction, problem.mask))
        failed = nonfinite.has_failed(solution)
        loss = tf.reduce_mean(tf.square(where_rows(failed, 0.0, distance)))
        # In a replica without samples, the mean over samples is 0 / 0.
        loss = tf.where(structure.batch_size > 0, loss, tf.zeros_like(loss))
        loss = tf.cast(loss, keras.config.floatx())
        self.add_loss(self.initial_state.weight * loss)


def check_owned(layer: Any, source: initial_states.InitialState) -> None:
    """Raises `ValueError` if a `DEQ` layer does not own the layer of `source`."""
    if source.layer is not None and source.layer is not layer._predictor:
        raise ValueError(
            "A predicted initial state has a layer with weights, which a DEQ layer "
            "adds when it is built. Pass `initial_state` to the constructor of the "
            f"DEQ layer. Received: initial_state={source!r}."
        )


def _add_weights(layer: Any, state: Nest) -> list[keras.Variable]:
    """Adds the weights of a learned initial state to a layer, one vector per leaf.

    Args:
        layer: The `DEQ` layer.
        state: Its initial state, a nest of `(batch, ..., features)` tensors.
    """
    leaves = tree.flatten(state)
    for leaf in leaves:
        if leaf.shape.rank < 2 or leaf.shape[-1] is None:
            raise ValueError(
                "A learned initial state is a vector (features,) for each leaf of the "
                "state, which must have the shape (batch, ..., features) with a static "
                f"number of features. Received: shape={leaf.shape}."
            )
    initializer = layer.initial_state.initializer
    return [
        layer.add_weight((leaf.shape[-1],), initializer, name=f"initial_state_{i}")
        for i, leaf in enumerate(leaves)
    ]
