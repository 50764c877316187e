"""The explicit network that a model with an equilibrium is compared with."""

from typing import Any

import keras

from deq_keras.core.checks import check_boolean, check_count
from deq_keras.core.internals import compute_spec
from deq_keras.core.serialization import Config
from deq_keras.layers import DEQ
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.solvers import FixedPointIteration

# Keys of a layer in the config of a functional model, beside the layer's own.
_NODE_KEYS = ("name", "inbound_nodes")


def explicit_twin(
    model: keras.Model, depth: int, tied: bool = True, name: str | None = None
) -> keras.Model:
    """Returns the same model with a fixed number of layers in place of each `DEQ`.

    A tied twin applies the cell `depth` times and differentiates all of them: a
    recurrent network with a constant input, and with as many weights as `model`, if no
    two `DEQ` layers share a cell. An untied twin has `depth` different cells, each with
    its own injection. (The weights that the first cell applies to a state of zeros have
    no effect.) Neither has a penalty or reads the `max_iter` and `tol` of a call. Both
    start from new weights and are not compiled. The metrics of a tied twin have the
    names of the original's.

    Args:
        model: A functional or sequential model with at least one `DEQ` layer.
        depth: Positive integer. Number of layers in place of each `DEQ`.
        tied: Boolean. Whether these layers share their weights. Defaults to `True`.
        name: String. Name of the twin. Defaults to `None`, the name of the model with
            the suffix `_tied` or `_untied`.

    Returns:
        A model of the same kind.

    Raises:
        ValueError: If `model` is of another kind or has no `DEQ` layer, if the class of
            a cell is not registered, or if a layer creates a `DEQ` that its config does
            not contain.

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
    has_graph = isinstance(model, (keras.Sequential, keras.Function))
    if not has_graph or not equilibrium_layers(model):
        raise ValueError(
            "`model` must be a functional or a sequential model with a DEQ layer. "
            "Build the twin of another model with the solver "
            "FixedPointIteration(depth, tol=None), gradient='unrolled' and "
            f"regularizer=None. Received: model={model!r}."
        )
    solver = FixedPointIteration(depth if tied else 1, tol=None)

    def explicit(config: Config) -> keras.layers.Layer:
        config = {
            **config,
            "solver": solver,
            "gradient": "unrolled",
            "regularizer": None,
            "max_iter_jitter": 0,
        }
        if tied:
            return TiedLayers.from_config(config)
        names = (f"{config['name']}_{i + 1}" for i in range(depth))
        layers = [DEQ.from_config({**config, "name": name}) for name in names]
        options = {key: config[key] for key in ("name", "dtype", "trainable")}
        return UntiedLayers(layers, **options)

    def replace(config: Any) -> Any:
        """Returns a config with twins of the `DEQ` layers in it, as in a wrapper's."""
        if isinstance(config, (list, tuple)):
            return type(config)(map(replace, config))
        if not isinstance(config, dict):
            return config
        cls = keras.saving.get_registered_object(config.get("registered_name"))
        if not isinstance(cls, type) or not issubclass(cls, DEQ):
            return {key: replace(value) for key, value in config.items()}
        twin = keras.saving.serialize_keras_object(explicit(config["config"]))
        # A functional model also stores how it calls the layer.
        return {**{key: config[key] for key in _NODE_KEYS if key in config}, **twin}

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if isinstance(layer, DEQ):
            return explicit(config)
        return layer.__class__.from_config(replace(config))

    try:
        twin = keras.models.clone_model(model, clone_function=clone, recursive=True)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            "`explicit_twin` builds new layers from their configs. Register the class "
            "of the cell with `keras.saving.register_keras_serializable`, and return "
            "the arguments of layers from `get_config`. "
            f"Received: model={model!r}. Error: {error}"
        ) from error
    expected = solver.get_config()
    for layer in equilibrium_layers(twin):
        if layer.solver.get_config() != expected:
            raise ValueError(
                "`explicit_twin` replaces DEQ layers of models, and in the configs of "
                "other layers, such as wrappers. Return the DEQ layer from the "
                f"`get_config` of its owner. Received: the DEQ layer {layer.name!r}."
            )
    twin.name = name or f"{model.name}_{'tied' if tied else 'untied'}"
    return twin


@keras.saving.register_keras_serializable(package="deq_keras")
class TiedLayers(DEQ):
    """A `DEQ` whose number of layers is its solver's, whatever budget a call passes."""

    def call(
        self,
        inputs: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = None,
        max_iter: Any = None,
        tol: Any = None,
    ) -> Any:
        del max_iter, tol
        return super().call(inputs, initial_state, mask, training)


@keras.saving.register_keras_serializable(package="deq_keras")
class UntiedLayers(keras.layers.Layer):
    """Applies layers of different cells to the same inputs, one after the other.

    Args:
        layers: List of `DEQ` layers, each with a budget of one evaluation.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Call arguments:
        inputs: Nest of tensors `(batch, ...)`, the inputs of each layer.
        initial_state, mask, training: See `DEQ`.
        max_iter, tol: Ignored, so that these layers can replace a `DEQ`.

    Output shape:
        Nest of `(batch, ...)` tensors, like the state of the cells.
    """

    def __init__(self, layers: list[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers = list(layers)
        self.supports_masking = True

    def build(self, inputs_shape: Any, initial_state_shape: Any = None) -> None:
        del inputs_shape, initial_state_shape  # Calls build the layers.

    def compute_output_shape(
        self, inputs_shape: Any, initial_state_shape: Any = None
    ) -> Any:
        del initial_state_shape
        return [layer.compute_output_shape(inputs_shape) for layer in self.layers][-1]

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Keras would take the dtype of the layer, and build the layers by shapes alone.
        return compute_spec(self.call, *args, **kwargs)

    def call(
        self,
        inputs: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = None,
        max_iter: Any = None,
        tol: Any = None,
    ) -> Any:
        del max_iter, tol
        state = initial_state
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
