"""A model whose solves may start from the equilibria of calls before."""

import keras

from deq_keras.serving.served_model import ServedModel


@keras.saving.register_keras_serializable(package="deq_keras")
class WarmStartModel(keras.Model):
    """A model whose solves may start from the equilibria of calls before.

    It gives in Keras, also in `predict`, what the signature `serve_warm` of
    `export_saved_model` gives a server, with the solvers as they are configured. For
    inference only.

    Args:
        model: A built functional `keras.Model` with an equilibrium layer.
        **kwargs: `name` of the model.

    Call arguments:
        inputs: Dict of the inputs by name (`inputs` for a single one) and, optional,
            of states to start from: `initial_state` for one layer with a state of one
            tensor; see `export_saved_model` for the names of others. A sample of which
            the state is not finite starts as `model` does.

    Returns:
        Dict of `outputs`, `evaluations`, `residual`, `status` and `equilibrium`, the
        next `initial_state`; see `export_saved_model`.

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
        self.state_specs = self._served.solutions.specs()
        if not self.state_specs:
            raise ValueError(
                "A warm start needs an equilibrium layer. Received: the model "
                f"{model.name!r}, which calls none."
            )

    def call(self, inputs):
        known = {*self._served.inputs, *self.state_specs}
        if not set(self._served.inputs) <= set(inputs) <= known:
            raise ValueError(
                f"Expected a dict of {sorted(self._served.inputs)} and, optional, of "
                f"{sorted(self.state_specs)}. Received: {sorted(inputs)}."
            )
        return self._served.answer(inputs)

    def get_config(self):
        model = keras.saving.serialize_keras_object(self.model)
        return {"name": self.name, "model": model}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("model")), **config)
