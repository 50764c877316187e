"""The equilibrium that reconstructs an image."""

import copy
from typing import Any

import keras
from keras_hub.models import Backbone

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core.checks import check_boolean
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import DEQ, LinearOperator
from deq_keras.models.kerashub import PackagedBackbone, trained_preset


@keras.saving.register_keras_serializable(package="deq_keras")
class ImageRestorerBackbone(PackagedBackbone, Backbone):
    """Computes the image that explains measurements.

    A `DEQ` of a reconstruction cell, which alternates a step toward the measurements
    and a learned denoiser. The cell contains the operator that measured the images: a
    model is for this operator and this size of images.

    Args:
        cell: `ProximalGradientCell` or `HalfQuadraticCell`.
        has_noise_level: Boolean. Whether the denoiser reads the noise level of each
            image as a further channel. Defaults to `False`.
        solver: See `DEQ`. Defaults to `"auto"`.
        gradient: See `DEQ`. Defaults to `"auto"`.
        regularizer: See `DEQ`. Defaults to `"auto"`.
        max_iter_jitter: See `DEQ`. Defaults to `0`.
        initial_state: See `DEQ`. Defaults to `"cell"`, A^T y / ||A||^2.
        dtype: Dtype or policy of the equilibrium layer. Defaults to `None`, the cell's.
        **kwargs: `name` and `trainable`.

    Call arguments:
        inputs: Floating-point tensor of measurements, or with `has_noise_level` a dict
            of `"measurements"` and `"noise_level"`, the standard deviation of the
            noise in the unit of the measurements: in images in [0, 1], well below 1.

    Input shape:
        Measurements: `(batch, *cell.operator.measurement_shape)`.
        Noise level: `(batch, 1)`.

    Output shape:
        `(batch, height, width, channels)`.

    Raises:
        ValueError: If measurements have another shape or an integer dtype.

    Example:

    >>> operator = deq_keras.layers.Downsampling(2, (8, 8, 1))
    >>> cell = deq_keras.layers.ProximalGradientCell(
    ...     operator, deq_keras.layers.ImageDenoiser(filters=8, num_layers=3))
    >>> backbone = ImageRestorerBackbone(cell)
    >>> tuple(backbone(np.ones((2, 4, 4, 1), "float32")).shape)
    (2, 8, 8, 1)

    Reference:

    - Gilton, Ongie and Willett (2021), "Deep equilibrium architectures for inverse
      problems in imaging".
    """

    presets = {
        "deblur": trained_preset(
            "Sharpens gray photographs that a Gaussian of 1.5 pixels has blurred."
        )
    }

    def __init__(
        self,
        cell: keras.layers.Layer,
        has_noise_level: bool = False,
        solver: str | Config | solvers.FixedPointSolver = "auto",
        gradient: str | Config | gradients.EquilibriumGradient = "auto",
        regularizer: str | Config | regularizers.EquilibriumRegularizer | None = "auto",
        max_iter_jitter: int = 0,
        initial_state: str | Config | initial_states.InitialState = "cell",
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        if not hasattr(cell, "operator"):
            raise ValueError(
                "`cell` must be a reconstruction cell, such as ProximalGradientCell. "
                f"Received: cell={cell!r} (of type {type(cell).__name__})."
            )
        policy = cell.dtype_policy if dtype is None else keras.dtype_policies.get(dtype)
        has_noise_level = check_boolean("has_noise_level", has_noise_level)
        deq = DEQ(
            cell,
            solver,
            gradient,
            regularizer,
            max_iter_jitter=max_iter_jitter,
            initial_state=initial_state,
            dtype=policy,
            name="deq",
        )

        # === Functional Model ===
        inputs = keras.Input(cell.operator.measurement_shape, name="measurements")
        sources = inputs
        if has_noise_level:
            level = keras.Input((1,), name="noise_level")
            inputs = {"measurements": inputs, "noise_level": level}
            sources = list(inputs.values())
        super().__init__(inputs=inputs, outputs=deq(sources), dtype=policy, **kwargs)

        # === Config ===
        self.deq = deq
        self.has_noise_level = has_noise_level

    def check_inputs(self, inputs: Any) -> None:
        is_dict = isinstance(inputs, dict)
        names = {"measurements", "noise_level"} if self.has_noise_level else set()
        if is_dict != self.has_noise_level or (is_dict and set(inputs) != names):
            raise ValueError(
                f"'{self.name}' expects a tensor of measurements or, if created with "
                "`has_noise_level=True`, a dict of `measurements` and `noise_level`. "
                f"Received: inputs of type {type(inputs).__name__}"
                f"{f' with the keys {sorted(inputs)}' if is_dict else ''}, "
                f"has_noise_level={self.has_noise_level}."
            )
        measurements = inputs["measurements"] if is_dict else inputs
        dtype = keras.backend.standardize_dtype(measurements.dtype)
        if "float" not in dtype:
            raise ValueError(
                f"'{self.name}' expects measurements in floating-point, as its "
                f"preprocessor returns them. Received: measurements of dtype {dtype}."
            )

    def with_operator(self, operator: LinearOperator) -> Any:
        """Returns a model of the same weights for another operator or size of images.

        The denoiser was trained with the present operator: others with similar errors
        of the images suit it best.

        Args:
            operator: `LinearOperator` of images with as many channels. If it has
                weights, the model copies their values.
        """
        config = self.get_config()
        serialized = keras.saving.serialize_keras_object(operator)
        config["cell"]["config"]["operator"] = serialized
        backbone = type(self).from_config(config)
        for old, new in zip(_own_weights(self), _own_weights(backbone), strict=True):
            new.assign(old)
        if operator.weights:
            backbone.deq.cell.operator.set_weights(operator.get_weights())
        return backbone

    def default_lora_layer_names(self) -> list[str]:
        """Returns the names of the layers of the denoiser that support LoRA."""
        return sorted(self._lora_names())

    def get_config(self) -> Config:
        arguments = arguments_of(self, ImageRestorerBackbone, self.deq)
        return {**arguments, **super().get_config()}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        config = {**config, "cell": copy.deepcopy(config["cell"])}
        dtype = keras.dtype_policies.get(config.pop("dtype", None))
        # The layers' configs already contain the policies of a map.
        if not isinstance(dtype, keras.dtype_policies.DTypePolicyMap):
            cell = config["cell"]["config"]
            for layer in (cell, cell["denoiser"]["config"]):
                layer["dtype"] = keras.dtype_policies.serialize(dtype)
        config["cell"] = keras.saving.deserialize_keras_object(config["cell"])
        return cls(**config)


def _own_weights(backbone: Any) -> Any:
    """Returns the weights, without the weights of the operator."""
    others = {id(one) for one in backbone.deq.cell.operator.weights}
    return [one for one in backbone.weights if id(one) not in others]
