"""Settings of an equilibrium layer that change during training."""

import types
from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.core import replicas
from deq_keras.core.checks import check_fraction, check_non_negative
from deq_keras.core.linearization import Linearization
from deq_keras.core.random import integer
from deq_keras.solvers import FixedPointSolver

_FACTOR, _PROBABILITY = "penalty_factor", "penalty_probability"


class Controls:
    """Mixin of `DEQ`: the penalty and its schedule, the budget of a training step."""

    def _create_controls(self) -> None:
        # Keras would track a dict, and a built layer cannot add tracked variables.
        self._controls = types.SimpleNamespace()
        self._add_control(_FACTOR, 1.0)

    @property
    def control_variables(self) -> list[keras.Variable]:
        """The variables that belong to the state of training, but not to the weights:
        the penalty factor."""
        return [self._control(_FACTOR)]

    @property
    def penalty_factor(self) -> float:
        """Factor of the penalty of training steps, a float. Defaults to `1.0`.

        A new factor applies to the next training step without compiling. It is saved
        with the weights, so that a resumed training continues with it.
        `RegularizerSchedule` and `PenaltyTarget` set it.
        """
        return self._number(_FACTOR)

    @penalty_factor.setter
    def penalty_factor(self, factor: float) -> None:
        self._control(_FACTOR).assign(check_non_negative(_FACTOR, factor))

    @property
    def penalty_probability(self) -> float | None:
        """Fraction of training steps that add the penalty. Float, or `None` for the
        regularizer's `probability`.

        A new float applies to the next training step; compile the model if it was
        `None` before. It is not saved. `RegularizerSchedule` sets it.
        """
        return self._number(_PROBABILITY)

    @penalty_probability.setter
    def penalty_probability(self, probability: float | None) -> None:
        if probability is None:
            vars(self._controls).pop(_PROBABILITY, None)
            return
        check_fraction(_PROBABILITY, probability)
        if self._control(_PROBABILITY) is None:
            self._add_control(_PROBABILITY, probability)
        else:
            self._control(_PROBABILITY).assign(probability)

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        if self.regularizer is not None and self.penalty_factor != 1.0:
            store[_FACTOR] = ops.convert_to_numpy(self._control(_FACTOR))

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        others = {name: store[name] for name in store.keys() if name != _FACTOR}
        super().load_own_variables(others)  # type: ignore[misc]
        if _FACTOR in store.keys():
            self._control(_FACTOR).assign(store[_FACTOR])

    def _control(self, name: str) -> keras.Variable | None:
        return getattr(self._controls, name, None)

    def _number(self, name: str) -> float | None:
        variable = self._control(name)
        return None if variable is None else float(ops.convert_to_numpy(variable))

    def _add_control(self, name: str, value: float) -> None:
        with replicas.scope(self.seed_generator.state):
            variable = keras.Variable(
                keras.initializers.Constant(value),
                shape=(),
                dtype="float32",
                trainable=False,
                autocast=False,
                aggregation="only_first_replica",
                name=name,
            )
        setattr(self._controls, name, variable)

    def _add_regularization_loss(self, linearization: Linearization) -> None:
        seed, regularizer = self._next_seed(), self.regularizer
        probability = self._control(_PROBABILITY)
        if probability is not None:
            regularizer = regularizer.with_probability(probability.value)
        loss = regularizer(linearization, seed)
        loss *= tf.cast(self._control(_FACTOR).value, loss.dtype)
        # In a replica without samples, the mean over samples is 0 / 0.
        num_samples = tf.shape(tree.flatten(linearization.value)[0])[0]
        loss = tf.where(num_samples > 0, loss, tf.zeros_like(loss))
        # Keras adds losses in its own precision, regardless of the layer's.
        self.add_loss(tf.cast(loss, keras.config.floatx()))
        self._penalty.update_state(loss)

    def _draw_budget(self, solver: FixedPointSolver) -> tf.Tensor | None:
        """Returns the budget of a training step, or `None` for the solver's own."""
        if self.max_iter_jitter == 0:
            return None
        # A call, or a later solver, may have a smaller budget than the jitter.
        max_iter = solver.max_iter
        jitter = min(self.max_iter_jitter, max_iter - 1)
        return max_iter - integer(self._next_seed(), 0, jitter + 1)
