"""Keras models that wrap a model to choose the initial states of its solves."""

import keras
from keras import tree

from deq_keras.core.checks import check_count, check_integer
from deq_keras.core.structure import with_rows_of
from deq_keras.layers import SolveScope
from deq_keras.multistart import Selection, chosen_rows, repeat_rows
from deq_keras.serving.served_model import ServedModel


@keras.saving.register_keras_serializable(package="deq_keras")
class WarmStartModel(keras.Model):
    """A model whose solves can start from the equilibria of earlier calls.

    The signature `serve_warm` of `export_saved_model` for Keras, including `predict`,
    with the solvers as configured. For inference only.

    Args:
        model: A built functional `keras.Model` with an equilibrium layer.
        **kwargs: `name` of the model.

    Call arguments:
        inputs: Dict of the inputs by name (`inputs` for a single one without a name)
            and, optionally, of initial states: `initial_state` for one layer with a
            state of one tensor; `export_saved_model` lists the other names. A sample
            with a non-finite state starts from the initial state of `model`.

    Returns:
        Dict of `outputs`, `evaluations`, `residual`, `status` and `equilibrium`, the
        next `initial_state`; see `export_saved_model`.

    Raises:
        ValueError: If `model` calls no equilibrium layer.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> warm = WarmStartModel(model)
    >>> frame = np.ones((2, 3), "float32")
    >>> first = warm.predict({"inputs": frame}, verbose=0)
    >>> request = {"inputs": frame, "initial_state": first["equilibrium"]}
    >>> warm.predict(request, verbose=0)["evaluations"]
    array([1, 1], dtype=int32)
    """

    def __init__(self, model, **kwargs):
        super().__init__(**kwargs)
        self.model = model
        self._served = ServedModel(model)
        self.input_specs = self._served.inputs
        self.state_specs = self._served.solve_outputs.specs()
        if not self.state_specs:
            raise ValueError(
                "A warm start needs an equilibrium layer. Received: the model "
                f"{model.name!r}, which calls none."
            )

    def call(self, inputs):
        known = {*self._served.inputs, *self.state_specs}
        if not set(self._served.inputs) <= set(inputs) <= known:
            raise ValueError(
                f"Expected a dict of {sorted(self._served.inputs)} and, optionally, of "
                f"{sorted(self.state_specs)}. Received: {sorted(inputs)}."
            )
        return self._served.respond(inputs)

    def get_config(self):
        config = {"name": self.name, "model": self.model}
        return keras.saving.serialize_keras_object(config)

    @classmethod
    def from_config(cls, config):
        return cls(**keras.saving.deserialize_keras_object(config))


@keras.saving.register_keras_serializable(package="deq_keras")
class RestartsModel(keras.Model):
    """A model that solves each sample from several initial states and selects one.

    The whole model runs on a batch with `restarts` copies of each sample, so that the
    outputs of the copies can be compared. It needs as much memory as a batch of this
    size. The first copy starts as in `model`. The others start from random states, the
    same for all samples (see `multistart.solve`), so that an output depends neither on
    the batch nor on the position of a sample in it. For inference only.

    Args:
        model: A built functional `keras.Model` that calls one equilibrium layer, once.
        restarts: Positive integer. Defaults to `8`.
        select: `"residual"`, `"vote"` or a function; see
            `deq_keras.multistart.Selection`. Defaults to `"residual"`.
        answer: Optional readout: a function from the outputs of `model` to a nest of
            integer or Boolean tensors `(batch, ...)`, such as the `argmax` of logits.
            `"vote"` requires it, and `agreement` then compares readouts; see
            `Selection`. Functions are saved with the model if they are registered with
            Keras.
        seed: Integer. Determines the random states. Defaults to `0`.
        **kwargs: `name` of the model.

    Call arguments:
        inputs: The inputs of `model`.

    Returns:
        Dict of the `outputs` of `model` for the selected restarts, and of tensors
        `(batch,)`: `evaluations`, `residual`, `status`, `restart`, `agreement`,
        `spread` and `total_evaluations`; see `deq_keras.multistart.SelectedSolution`.

    Raises:
        ValueError: If `model` does not call exactly one equilibrium layer, once.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])
    >>> multistart = deq_keras.serving.RestartsModel(
    ...     model, restarts=4, select="vote", answer=lambda y: tf.argmax(y, axis=-1)
    ... )
    >>> found = multistart.predict(np.ones((2, 3), "float32"), verbose=0)
    >>> found["outputs"].shape, found["agreement"]
    ((2, 2), array([1., 1.], dtype=float32))
    """

    def __init__(
        self, model, restarts=8, select="residual", answer=None, seed=0, **kwargs
    ):
        super().__init__(**kwargs)
        self.restarts = check_count("restarts", restarts)
        self.selection = Selection(select, answer)
        self.seed = check_integer("seed", seed)
        self.model = model
        solved = list(ServedModel(model).solve_outputs.solutions)
        if len(solved) != 1:
            raise ValueError(
                "Restarts are selected by one equilibrium. Expected: a model that "
                "calls one equilibrium layer, once. Received: the model "
                f"{model.name!r}, which solves {solved}."
            )

    def call(self, inputs):
        first, *_ = tree.flatten(inputs)
        inputs = tree.map_structure(lambda leaf: with_rows_of(first, leaf), inputs)
        repeated = repeat_rows(inputs, self.restarts)
        with SolveScope(restarts=self.restarts, seed=self.seed) as scope:
            outputs = self.model(repeated, training=False)
        (solution,) = scope.solutions.values()
        selected = self.selection(solution, self.restarts, outputs)
        return {
            "outputs": chosen_rows(outputs, selected.restart),
            "evaluations": selected.num_evaluations,
            "residual": selected.residual,
            "status": selected.status,
            "restart": selected.restart,
            "agreement": selected.agreement,
            "spread": selected.spread,
            "total_evaluations": selected.total_evaluations,
        }

    def get_config(self):
        config = {
            "name": self.name,
            "model": self.model,
            "restarts": self.restarts,
            "select": self.selection.select,
            "answer": self.selection.answer,
            "seed": self.seed,
        }
        return keras.saving.serialize_keras_object(config)

    @classmethod
    def from_config(cls, config):
        return cls(**keras.saving.deserialize_keras_object(config))
