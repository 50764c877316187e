"""A Keras model that wraps a model to choose the initial states of its solves."""

import keras

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
