"""The explicit network that a model with an equilibrium is compared with."""

from typing import Any

import keras

from deq_keras.core.checks import check_boolean, check_count
from deq_keras.core.serialization import Config
from deq_keras.layers import DEQ
from deq_keras.solvers import FixedPointIteration


def explicit_twin(
    model: keras.Model, depth: int, tied: bool = True, name: str | None = None
) -> keras.Model:
    """Returns the same model with a fixed number of layers in place of each `DEQ`.

    A tied twin applies the cell `depth` times and differentiates all of them: a
    recurrent network with a constant input, and with as many weights as `model`. An
    untied twin has `depth` different cells, each with its own injection. (The weights
    that the first cell applies to a state of zeros have no effect.) Neither has a
    penalty. Both start from new weights and are not compiled. The metrics of a tied
    twin have the names of the original's.

    Args:
        model: A functional or sequential model with at least one `DEQ` layer.
        depth: Positive integer. Number of layers in place of each `DEQ`.
        tied: Boolean. Whether these layers share their weights. Defaults to `True`.
        name: String. Name of the twin. Defaults to `None`, the name of the model with
            the suffix `_tied` or `_untied`.

    Returns:
        A model of the same kind.

    Raises:
        ValueError: If `model` is of another kind or has no `DEQ` layer.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> twin = deq_keras.models.explicit_twin(model, depth=6)
    >>> twin.count_params() == model.count_params()
    True
    >>> untied = deq_keras.models.explicit_twin(model, depth=6, tied=False)
    >>> untied(np.ones((2, 3), "float32")).shape
    TensorShape([2, 1])
    """
    depth, tied = check_count("depth", depth), check_boolean("tied", tied)
    layers = model._flatten_layers() if isinstance(model, keras.Model) else ()
    if not any(isinstance(layer, DEQ) for layer in layers):
        raise ValueError(
            "`model` must be a functional or a sequential model with a DEQ layer. "
            f"Received: model={model!r}."
        )

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        if not isinstance(layer, DEQ):
            return layer.__class__.from_config(layer.get_config())
        config = {
            **layer.get_config(),
            "gradient": "unrolled",
            "regularizer": None,
            "max_iter_jitter": 0,
        }
        if tied:
            config["solver"] = FixedPointIteration(depth, tol=None)
            return DEQ.from_config(config)
        config["solver"] = FixedPointIteration(1, tol=None)
        names = (f"{layer.name}_{i + 1}" for i in range(depth))
        layers = [DEQ.from_config({**config, "name": name}) for name in names]
        return UntiedLayers(layers, name=layer.name)

    try:
        twin = keras.models.clone_model(model, clone_function=clone, recursive=True)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Keras copies functional and sequential models only. Build the twin of "
            "another model with the solver FixedPointIteration(depth, tol=None), "
            "gradient='unrolled' and regularizer=None. Received: model of type "
            f"{type(model).__name__}."
        ) from error
    twin.name = name or f"{model.name}_{'tied' if tied else 'untied'}"
    return twin


@keras.saving.register_keras_serializable(package="deq_keras")
class UntiedLayers(keras.layers.Layer):
    """Applies layers of different cells to the same inputs, one after the other.

    Args:
        layers: List of `DEQ` layers, each with a budget of one evaluation.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Call arguments:
        inputs: Nest of tensors `(batch, ...)`, the inputs of each layer.
        mask: See `DEQ`.
        training: Boolean.

    Output shape:
        Nest of `(batch, ...)` tensors, like the state of the cells.
    """

    def __init__(self, layers: list[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers = list(layers)
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        del inputs_shape  # The layers are built when they are called.

    def call(self, inputs: Any, mask: Any = None, training: bool | None = None) -> Any:
        state = None
        for layer in self.layers:
            state = layer(inputs, initial_state=state, mask=mask, training=training)
        return state

    def get_config(self) -> Config:
        serialize = keras.saving.serialize_keras_object
        return {**super().get_config(), "layers": [*map(serialize, self.layers)]}

    @classmethod
    def from_config(cls, config: Config) -> "UntiedLayers":
        config = dict(config)
        layers = map(keras.saving.deserialize_keras_object, config.pop("layers"))
        return cls(list(layers), **config)
