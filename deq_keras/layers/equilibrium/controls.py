"""Settings of an equilibrium layer that change during training."""

import types
from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.core import replicas
from deq_keras.core.checks import check_fraction, check_integer, check_non_negative
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.linearization import Linearization
from deq_keras.core.random import integer
from deq_keras.regularizers import EquilibriumConstraint
from deq_keras.solvers import FixedPointSolver

_MULTIPLIER, _BUDGET = "multiplier", "training_budget"
_FACTOR, _PROBABILITY = "penalty_factor", "penalty_probability"


class Controls:
    """Mixin of `DEQ`: the penalty, its schedule and multiplier, the training budget.

    Keras saves the variables with the weights of the layer, but they are not weights: a
    built layer can add them, and can load weights that were saved without them.
    """

    def _create_controls(self) -> None:
        # Keras would track a dict, and a built layer cannot add tracked variables.
        self._controls = types.SimpleNamespace()
        self._add_control(_MULTIPLIER, 1.0, "float32")

    @property
    def control_variables(self) -> list[keras.Variable]:
        """The variables that belong to the state of training, but not to the weights.

        The multiplier of a constraint, and the training budget if it is set.
        """
        return [
            variable
            for name, variable in vars(self._controls).items()
            if name in (_MULTIPLIER, _BUDGET)
        ]

    @property
    def training_budget(self) -> int | None:
        """Budget of training steps. Integer, or `None` for the solver's `max_iter`.

        `max_iter_jitter` lowers it further. A new integer applies to the next training
        step without compiling, and is saved with the weights. Inference uses the budget
        of the solver.
        """
        variable = self._control(_BUDGET)
        return None if variable is None else int(ops.convert_to_numpy(variable))

    @training_budget.setter
    def training_budget(self, budget: int | None) -> None:
        if budget is not None:
            check_integer("training_budget", budget, 1, self.solver.max_iter)
        self._set_control(_BUDGET, budget, "int32")

    @property
    def penalty_factor(self) -> float | None:
        """Factor of the penalty of training steps. Float, or `None` for 1.

        A new float applies to the next training step; compile the model if it was
        `None` before. It is not saved. `RegularizerSchedule` sets it.
        """
        return self._number(_FACTOR)

    @penalty_factor.setter
    def penalty_factor(self, factor: float | None) -> None:
        if factor is not None:
            check_non_negative(_FACTOR, factor)
        self._set_control(_FACTOR, factor, "float32")

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
        if probability is not None:
            check_fraction(_PROBABILITY, probability)
        self._set_control(_PROBABILITY, probability, "float32")

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        names = [_BUDGET]
        if isinstance(self.regularizer, EquilibriumConstraint):
            names.append(_MULTIPLIER)
        for name in names:
            if (variable := self._control(name)) is not None:
                store[name] = ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        own = (_MULTIPLIER, _BUDGET)
        others = {name: store[name] for name in store.keys() if name not in own}
        super().load_own_variables(others)  # type: ignore[misc]
        if _BUDGET in store.keys():
            self.training_budget = min(int(store[_BUDGET][()]), self.solver.max_iter)
        if _MULTIPLIER in store.keys():
            self._control(_MULTIPLIER).assign(store[_MULTIPLIER])

    def _control(self, name: str) -> keras.Variable | None:
        return getattr(self._controls, name, None)

    def _number(self, name: str) -> float | None:
        variable = self._control(name)
        return None if variable is None else float(ops.convert_to_numpy(variable))

    def _set_control(self, name: str, value: float | None, dtype: str) -> None:
        """Assigns a value to a variable, which is added or, for `None`, removed."""
        if value is None:
            vars(self._controls).pop(name, None)
        elif self._control(name) is None:
            self._add_control(name, value, dtype)
        else:
            self._control(name).assign(value)

    def _add_control(self, name: str, value: float, dtype: str) -> None:
        with replicas.scope(self.seed_generator.state):
            variable = keras.Variable(
                keras.initializers.Constant(value),
                shape=(),
                dtype=dtype,
                trainable=False,
                autocast=False,
                aggregation="only_first_replica",
                name=name,
            )
        setattr(self._controls, name, variable)

    def _add_regularization_loss(self, linearization: Linearization) -> None:
        seed, regularizer = self._next_seed(), self.regularizer
        factor, probability = self._control(_FACTOR), self._control(_PROBABILITY)
        if probability is not None:
            regularizer = regularizer.with_probability(probability.value)
        if isinstance(regularizer, EquilibriumConstraint):
            loss = self._constraint_loss(regularizer, linearization, seed)
        else:
            loss = regularizer(linearization, seed)
        if factor is not None:
            loss *= tf.cast(factor.value, loss.dtype)
        # In a replica without samples, the mean over samples is 0 / 0.
        num_samples = tf.shape(tree.flatten(linearization.value)[0])[0]
        loss = tf.where(num_samples > 0, loss, tf.zeros_like(loss))
        # Keras adds losses in its own precision, regardless of the layer's.
        self.add_loss(tf.cast(loss, keras.config.floatx()))
        self._penalty.update_state(loss)

    def _constraint_loss(
        self,
        constraint: EquilibriumConstraint,
        linearization: Linearization,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        multiplier = self._control(_MULTIPLIER)
        penalty, total, count = constraint.measured_penalty(linearization, seed)
        loss = tf.cast(multiplier.value, penalty.dtype) * penalty
        self._multiplier.update_state(multiplier)

        # This must not refer to the layer, because a graph may outlive the layer.
        def update(cotangent: tf.Tensor) -> list[tf.Tensor]:
            sums = replicas.sums([total, count])
            multiplier.assign(constraint.next_multiplier(multiplier.value, *sums))
            return [cotangent]

        # Replicas synchronize in this backward pass. In the forward pass, Keras would
        # report the penalty of one replica in the loss of another: they share a list.
        return custom_gradient(lambda value: (value, update))(loss)

    def _draw_budget(self, solver: FixedPointSolver) -> tf.Tensor | None:
        """Returns the budget of a training step, or `None` for the solver's own."""
        control, max_iter = self._control(_BUDGET), solver.max_iter
        if control is None and self.max_iter_jitter == 0:
            return None
        # A later solver may have a smaller budget than the first one.
        budget = max_iter if control is None else tf.minimum(control.value, max_iter)
        if self.max_iter_jitter == 0:
            return budget
        # A call, or a later solver, may have a smaller budget than the jitter.
        jitter = min(self.max_iter_jitter, max_iter - 1)
        drawn = integer(self._next_seed(), 0, jitter + 1)
        return tf.maximum(budget - drawn, 1)
