"""Cells made from layers that were not written as cells."""

import contextlib
import copy
import inspect
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.core.internals import flatten_layers, set_keras_mask
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest
from deq_keras.layers.equilibrium import lipschitz
from deq_keras.layers.equilibrium.cell import EquilibriumCell
from deq_keras.layers.equilibrium.cell_problem import is_rnn_cell
from deq_keras.layers.equilibrium.defaults import unquantized_policy
from deq_keras.layers.variational_dropout import VariationalDropout

Shape = tuple[Any, ...]
Injection = str | Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_RANDOM = (
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    VariationalDropout,
)

# Call arguments for a mask of Keras' layers and of KerasHub's blocks.
_MASKS = ("mask", "padding_mask", "decoder_padding_mask")


def cell_from(
    layer: keras.layers.Layer, injection: Injection = "add", **kwargs: Any
) -> EquilibriumCell:
    """Returns an equilibrium cell made from a layer or model of one tensor.

    ```
    f(z, x) = layer(z + W x)            injection="add"
    f(z, x) = layer(concat(z, x))       injection="concat"
    f(z, x) = layer(injection(z, x))    a function, or a layer called with (z, x)
    f(z, x) = layer(x, z)               an RNN cell, such as keras.layers.GRUCell
    ```

    The layer can be a Keras layer, a `Sequential`, a functional model of one input such
    as a residual block, a block of KerasHub such as `TransformerEncoder`, or an RNN
    cell, whose states are the state (a list, if it has several). It is evaluated until
    its output stops changing, so it must be a pure function that keeps the shape of the
    state. The last axis is the features.

    A layer converges to an equilibrium if it contracts. A tanh or a norm at its end
    bounds the state: prefer `TransformerEncoder(...)` to `normalize_first=True`, and
    residual blocks that normalize their sum. A block that returns its own input plus
    an update rarely contracts. Give the inputs the scale of the state, for example by
    `LayerNormalization` after an `Embedding`: beside a normalized state, small inputs
    have hardly any effect on the equilibrium, and training can lose it.

    Args:
        layer: Layer or model that is called with one tensor. Its output width is the
            width of the state.
        injection: How the inputs x enter. `"add"`: W is a projection without bias. If
            the inputs have the width of the state, they are added unchanged.
            `"concat"`: along the last axis. If the widths of output and state differ,
            as for blocks that keep the width of their input, a projection follows. A
            callable `(state, inputs) -> tensor` combines both; register a function to
            save it. Defaults to `"add"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`. `dtype` defaults to
            the dtype of the layer. A model has the global dtype policy, regardless of
            its layers.

    Input shape:
        Of the `DEQ` layer: `(batch, ..., features)`. The layer receives the mask of the
        inputs, for example from an `Embedding`. Inputs at padding are set to zero.

    Output shape:
        `(batch, ..., units)`, with the axes of the inputs and the width of the layer.

    Raises:
        ValueError: If the layer cannot be a cell: it couples the samples of a batch, is
            random or stateful, has several inputs, or changes another axis than the
            last. The message says what to use.

    Example:

    >>> block = keras.Sequential([
    ...     keras.layers.Dense(32, "relu"), keras.layers.Dense(16, "tanh")])
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.cell_from(block))
    >>> deq(np.ones((2, 3), "float32")).shape
    TensorShape([2, 16])
    """
    if is_rnn_cell(layer):
        if injection != "add":
            raise ValueError(
                "An RNN cell takes the inputs itself. Leave out `injection`. Received: "
                f"layer={_label(layer)}, injection={injection!r}."
            )
        return RecurrentCell(layer, **kwargs)
    return LayerCell(layer, injection, **kwargs)


@keras.saving.register_keras_serializable(package="deq_keras")
class RecurrentCell(EquilibriumCell):
    """Cell that applies an RNN cell repeatedly to the same inputs.

    Args:
        layer: RNN cell of Keras without dropout: called with `(inputs, states)`, it
            returns `(output, states)`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any) -> None:
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = unquantized_policy(layer)
        super().__init__(**kwargs)
        for one in flatten_layers(layer):
            rates = getattr(one, "dropout", 0), getattr(one, "recurrent_dropout", 0)
            if any(rates):
                raise ValueError(
                    "An RNN cell in an equilibrium cell must not have dropout, which "
                    "would draw a mask at every evaluation. Drop inputs before the DEQ "
                    "layer, or write an EquilibriumCell that samples the mask of a "
                    "deq_keras.layers.VariationalDropout in `inject`. Received: "
                    f"layer={_label(one)}, dropout={rates[0]}, "
                    f"recurrent_dropout={rates[1]}."
                )
        self.layer = layer

    def build(self, state_shape: Nest, injection_shape: Shape) -> None:
        if not self.layer.built:
            self.layer.build(injection_shape)

    def inject(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the inputs, which must be vectors for gated cells."""
        del training
        gated = (keras.layers.GRUCell, keras.layers.LSTMCell)
        is_gated = any(isinstance(one, gated) for one in flatten_layers(self.layer))
        if is_gated and len(inputs.shape) != 2:
            name = type(self.layer).__name__
            raise ValueError(
                f"{name} of Keras needs inputs of the shape (batch, features). Call "
                "the DEQ layer at each position: keras.layers.TimeDistributed(DEQ("
                f"cell_from({name}(...)))). Received: inputs of the shape "
                f"{tuple(inputs.shape)}."
            )
        return inputs

    def initial_state(self, injection: tf.Tensor) -> Nest:
        """Returns a state of zeros."""
        leading = ops.shape(injection)[:-1]
        return tree.map_structure(
            lambda units: ops.zeros((*leading, units), self.compute_dtype),
            self.layer.state_size,
        )

    def call(self, state: Nest, injection: tf.Tensor) -> Nest:
        _, after = self.layer(injection, state)
        # Some cells return one state in a list.
        return tree.pack_sequence_as(state, tree.flatten(after))

    def get_config(self) -> Config:
        config = {"layer": keras.saving.serialize_keras_object(self.layer)}
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config: Config) -> "RecurrentCell":
        return cls(**keras.saving.deserialize_keras_object(config))


@keras.saving.register_keras_serializable(package="deq_keras")
class LayerCell(EquilibriumCell):
    """Cell that applies a layer to a combination of state and inputs.

    Args:
        layer: See `cell_from`.
        injection: See `cell_from`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(
        self, layer: keras.layers.Layer, injection: Injection = "add", **kwargs: Any
    ) -> None:
        _check_layer(layer)
        if injection not in ("add", "concat") and not callable(injection):
            raise ValueError(
                '`injection` must be "add", "concat", or a callable `(state, inputs) '
                f"-> tensor`. Received: injection={injection!r}."
            )
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = unquantized_policy(layer)
        super().__init__(**kwargs)
        self.layer = layer
        self.injection = injection
        self.projection: keras.layers.Layer | None = None
        self.output_projection: keras.layers.Layer | None = None
        # Width of the state for layers that cannot compute it. `None`: as the inputs.
        self.assumed_units: int | None = None
        self.supports_masking = True
        parameters = inspect.signature(layer.call).parameters
        self._mask_argument = next((n for n in _MASKS if n in parameters), None)
        if isinstance(layer, keras.Model):
            # Models propagate masks, but Keras warns unless they set this.
            layer.supports_masking = True
        self._check_sublayers()

    def build(self, inputs_shape: Shape) -> None:
        if len(inputs_shape) < 2 or inputs_shape[-1] is None:
            raise ValueError(
                f"Cell '{self.name}' expects inputs of shape (batch, ..., features) "
                "with a static number of features. Received: inputs of shape "
                f"{tuple(inputs_shape)}."
            )
        self.units = self._width_of_state(inputs_shape)
        state_shape = (*inputs_shape[:-1], self.units)
        injection_shape = inputs_shape
        if self.injection == "add" and self.units != inputs_shape[-1]:
            self.projection = self._dense("projection", use_bias=False)
            self.projection.build(inputs_shape)
            injection_shape = state_shape
        outputs_shape = self._output_shape(state_shape, injection_shape)
        if self.injection == "concat" and outputs_shape[-1:] != (self.units,):
            self._check_output_shape((*outputs_shape[:-1], self.units), state_shape)
            self.output_projection = self._dense("output_projection")
            self.output_projection.build(outputs_shape)
        else:
            self._check_output_shape(outputs_shape, state_shape)
        self._check_sublayers()  # Building a block creates its sublayers.

    def inject(
        self,
        inputs: tf.Tensor,
        training: bool = False,
        mask: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Projects the inputs, if `"add"` must, and sets padding to zero.

        Args:
            inputs: Tensor of shape `(batch, ..., features)`.
            training: Boolean. Passed to `normalized_kernel` of sublayers.
            mask: Optional Boolean tensor `(batch, ...)`, false at padding.

        Returns:
            Dict of the tensor `"inputs"`; with a mask, `"mask"`; and with sublayers
            that normalize their kernels, the list `"kernels"`.
        """
        if isinstance(inputs, (dict, list, tuple)):
            raise ValueError(
                "A cell made by `cell_from` takes one tensor of inputs. Concatenate "
                "the inputs before the DEQ layer, or write an EquilibriumCell. "
                f"Received: inputs of type {type(inputs).__name__}."
            )
        if not self.built:
            self.build(tuple(inputs.shape))
        inputs = ops.cast(inputs, self.compute_dtype)
        injection = {}
        if mask is not None:
            injection["mask"] = mask
            missing = len(inputs.shape) - len(mask.shape)
            position = ops.reshape(mask, (*ops.shape(mask), *[1] * missing))
            inputs = ops.where(position, inputs, ops.zeros_like(inputs))
        if self.projection is not None:
            inputs = self.projection(inputs)
        layers = self._normalized_layers()
        if layers:
            injection["kernels"] = [
                layer.normalized_kernel(training=training) for layer in layers
            ]
        return {**injection, "inputs": inputs}

    def initial_state(self, injection: Nest) -> tf.Tensor:
        """Returns a state of zeros."""
        shape = ops.shape(injection["inputs"])
        return ops.zeros((*shape[:-1], self.units), self.compute_dtype)

    def call(self, state: tf.Tensor, injection: Nest) -> tf.Tensor:
        kernels = injection.get("kernels")
        if kernels is None:
            return self._apply(state, injection)
        with contextlib.ExitStack() as stack:
            for layer, kernel in zip(self._normalized_layers(), kernels, strict=True):
                stack.enter_context(layer.fixed_kernel(kernel))
            return self._apply(state, injection)

    def lipschitz_constant(self, injection: Nest) -> tf.Tensor | None:
        """Returns the product of the Lipschitz constants of the layers.

        It is known for a dense layer of Keras or of this library, and for a
        `Sequential` of these, with `injection="add"` and activations of a known slope.
        See `EquilibriumCell.lipschitz_constant`.
        """
        if self.injection != "add":
            return None
        # A subclass of `Sequential` can have another `call`.
        is_chain = type(self.layer) is keras.Sequential and "call" not in vars(
            self.layer
        )
        kernels = dict(
            zip(
                map(id, self._normalized_layers()),
                injection.get("kernels", ()),
                strict=True,
            )
        )
        constants = [
            lipschitz.of_dense(layer, kernel=kernels.get(id(layer)))
            for layer in (self.layer.layers if is_chain else [self.layer])
        ]
        if not constants or any(constant is None for constant in constants):
            return None
        return math.prod(constants)

    def _normalized_layers(self) -> list[Any]:
        sublayers = flatten_layers(self, include_self=False)
        return [layer for layer in sublayers if hasattr(layer, "normalized_kernel")]

    def _apply(self, state: tf.Tensor, injection: Nest) -> tf.Tensor:
        joint, mask = self._combine(state, injection["inputs"]), injection.get("mask")
        if mask is None:
            outputs = self.layer(joint)
        elif self._mask_argument is not None:
            outputs = self.layer(joint, **{self._mask_argument: mask})
        else:
            set_keras_mask(joint, mask)  # Sublayers read the mask here.
            outputs = self.layer(joint)
        if self.output_projection is not None:
            outputs = self.output_projection(outputs)
        if isinstance(self.layer, keras.Model):
            # A model may compute in another precision than its global policy.
            outputs = ops.cast(outputs, self.compute_dtype)
        return outputs

    def get_config(self) -> Config:
        injection = self.injection
        if not isinstance(injection, str):
            injection = keras.saving.serialize_keras_object(injection)
        config = {
            "layer": keras.saving.serialize_keras_object(self.layer),
            "injection": injection,
        }
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config: Config) -> "LayerCell":
        config = copy.deepcopy(config)  # Functional models remove entries.
        for name in ("layer", "injection"):
            if not isinstance(config[name], str):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)

    def _combine(self, state: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        if self.injection == "add":
            return state + inputs
        if self.injection == "concat":
            return ops.concatenate([state, inputs], axis=-1)
        combine: Any = self.injection
        return combine(state, inputs)

    def _dense(self, name: str, use_bias: bool = True) -> keras.layers.Dense:
        return keras.layers.Dense(
            self.units, use_bias=use_bias, name=name, dtype=self.dtype_policy
        )

    def _width_of_state(self, inputs_shape: Shape) -> int:
        """Returns the width of the state, from the layer's output or input shape."""
        known = _built_shape(self.layer)
        if known is not None and self.injection == "concat":
            units = known[-1] - inputs_shape[-1]
            if units < 1:
                raise ValueError(
                    'With injection="concat", a layer that is built must take more '
                    "features than the inputs have; the others are the state. "
                    f"Received: a layer of {known[-1]} features, inputs of "
                    f"{inputs_shape[-1]}."
                )
            return units
        shape = known or inputs_shape
        try:
            units = self.layer.compute_output_shape(shape)[-1]
        except (NotImplementedError, TypeError, ValueError):
            # The trace of the layer shows whether this is right.
            units = self.assumed_units or shape[-1]
        return units if isinstance(units, int) else inputs_shape[-1]

    def _output_shape(self, state_shape: Shape, injection_shape: Shape) -> Shape:
        """Builds the layer; returns the shape of its output."""
        state = keras.KerasTensor(state_shape, self.compute_dtype)
        inputs = keras.KerasTensor(injection_shape, self.compute_dtype)
        try:
            outputs = keras.Operation.compute_output_spec(
                self, state, {"inputs": inputs}
            )
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                f"The layer {_label(self.layer)} of a cell failed when it was "
                "applied to a state and inputs. It must accept one tensor. "
                f"Received: state={state_shape}, inputs={injection_shape}, "
                f"injection={self.injection!r}. Error: {error}"
            ) from error
        if not isinstance(outputs, keras.KerasTensor):
            raise ValueError(
                f"The layer {_label(self.layer)} of a cell must return one tensor. "
                f"Received: outputs of type {type(outputs).__name__}."
            )
        return tuple(outputs.shape)

    def _check_output_shape(self, outputs_shape: Shape, state_shape: Shape) -> None:
        if tuple(outputs_shape) == state_shape:
            return
        raise ValueError(
            f"The layer {_label(self.layer)} of a cell must return the shape of "
            "the state, because it is applied to its own result. Use padding='same' "
            "without strides, return_sequences=True, or no pooling; for another width, "
            "project the inputs before the DEQ layer and end the layer with that "
            "width. "
            f"Expected: {state_shape}. Received: {outputs_shape}, "
            f"injection={self.injection!r}."
        )

    def _check_sublayers(self) -> None:
        for layer in flatten_layers(self, include_self=False):
            flaw = _flaw(layer)
            if flaw:
                raise ValueError(f"{flaw} Received: the layer {_label(layer)}.")


def _check_layer(layer: Any) -> None:
    """Raises `ValueError` unless `layer` is a layer called with one tensor."""
    if not isinstance(layer, keras.layers.Layer):
        raise ValueError(
            "`layer` must be a Keras layer or model. "
            f"Received: layer={layer!r} (of type {type(layer).__name__})."
        )
    num_inputs = len(getattr(layer, "inputs", None) or ())
    if not num_inputs:
        num_inputs = sum(
            parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            for parameter in inspect.signature(layer.call).parameters.values()
        )
    if num_inputs > 1:
        raise ValueError(
            "`layer` must be called with one tensor. Pass an EquilibriumCell, a layer "
            "whose call takes (state, injection), or a functional model of these two "
            "inputs to DEQ itself; write an EquilibriumCell around any other. "
            f"Received: layer={_label(layer)}, which takes {num_inputs} inputs."
        )


def _flaw(layer: keras.layers.Layer) -> str | None:
    """Returns why a layer cannot be in a cell and what to use, or `None`."""
    if isinstance(layer, keras.layers.BatchNormalization):
        return (
            "A cell must not contain BatchNormalization, which couples the samples of "
            "a batch and updates its statistics at every evaluation. Use GroupNormali"
            "zation or LayerNormalization of deq_keras.layers in the cell, and "
            "BatchNormalization before or after the DEQ layer."
        )
    if isinstance(layer, keras.layers.SpectralNormalization):
        return (
            "A cell must not contain SpectralNormalization, which updates its vectors "
            "at every evaluation. Use SpectrallyNormalizedDense or "
            "SpectrallyNormalizedConv2D of deq_keras.layers, which update them once in "
            "a training step."
        )
    if isinstance(layer, _RANDOM) and getattr(layer, "seed_generator", None):
        return (
            "A cell must not draw random numbers at every evaluation, because its "
            "equilibrium would not exist. Set the rate to 0, use dropout before or "
            "after the DEQ layer, or write an EquilibriumCell that samples the mask of "
            "a deq_keras.layers.VariationalDropout in `inject`."
        )
    if getattr(layer, "stateful", False):
        return (
            "A cell must not contain a stateful layer, whose variables change at every "
            "evaluation. Use stateful=False, and `initial_state` to continue from an "
            "earlier equilibrium."
        )
    if getattr(layer, "return_state", False):
        return (
            "A cell must return one tensor like its state. Use return_state=False and "
            "return_sequences=True."
        )
    return None


def _built_shape(layer: keras.layers.Layer) -> Shape | None:
    """Returns the input shape that a layer was built with, if its width is known."""
    if not layer.built:
        return None
    if getattr(layer, "inputs", None):
        shape: Any = tuple(layer.inputs[0].shape)
    else:
        shape = (layer.get_build_config() or {}).get("input_shape")
    return shape if shape and isinstance(shape[-1], int) else None


def _label(layer: keras.layers.Layer) -> str:
    return f"{layer.name!r} (of type {type(layer).__name__})"
