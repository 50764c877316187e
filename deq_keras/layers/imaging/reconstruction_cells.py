"""Cells whose equilibrium is the image that explains measurements."""

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_open_fraction, check_positive
from deq_keras.core.internals import flatten_layers
from deq_keras.core.structure import at_least_float32
from deq_keras.layers.equilibrium import EquilibriumCell, cell_from
from deq_keras.layers.imaging.image_denoiser import ImageDenoiser
from deq_keras.layers.imaging.linear_operator import LinearOperator, check_real

# Shapes of the noise level of one image.
_NOISE = ((), (1,))


class ReconstructionCell(EquilibriumCell):
    """Base class of cells that alternate a data step and a denoiser.

    Subclasses implement `call` with `operator` and `denoise`.

    Args:
        operator: `LinearOperator` A, which maps images to measurements.
        denoiser: Keras layer or model that maps images to images of the same shape. If
            the cell receives a noise level, it is a further, last channel of what the
            denoiser reads. The denoiser is evaluated until the image stops changing:
            it must not contain batch normalization or dropout.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    # On blurred digits, the truncated gradient of other cells trains states that do not
    # converge within the budget. The data step needs no penalty to converge.
    default_gradient = "neumann"
    default_regularizer = None
    # With 1e-3, the images of trained networks are up to 1 dB from the equilibrium's.
    default_solver = {"class_name": "anderson", "tol": 1e-4}

    def __init__(
        self, operator: LinearOperator, denoiser: keras.layers.Layer, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False  # A^T y stays in float32 or better.
        if not isinstance(operator, LinearOperator):
            raise ValueError(
                "`operator` must be a LinearOperator, such as Blur. Received: "
                f"operator={operator!r} (of type {type(operator).__name__})."
            )
        self.operator = operator
        self.denoiser = denoiser
        # Checks the denoiser, and fixes its normalized kernels for a solve.
        self.denoiser_cell = cell_from(denoiser, _with_condition, name="denoiser_cell")
        self.denoiser_cell.assumed_units = operator.image_shape[2]

    def build(self, input_shape: Any) -> None:
        shapes = _as_list(input_shape)
        image_shape = self.operator.image_shape
        self.operator.check_shape(
            "measurements", shapes[0], self.operator.measurement_shape
        )
        if len(shapes) > 2 or (len(shapes) == 2 and tuple(shapes[1][1:]) not in _NOISE):
            raise ValueError(
                f"Cell '{self.name}' expects measurements, or a list of measurements "
                "and a noise level of shape (batch,) or (batch, 1). Received: inputs "
                f"of shapes {shapes}."
            )
        self.operator.check_adjoint()
        self._check_data_format()
        channels = image_shape[2] + len(shapes) - 1
        error = None
        try:
            self.denoiser_cell.build((None, *image_shape[:2], channels))
        except ValueError as found:
            error = found
        units = self.denoiser_cell.units
        if error is not None or units != image_shape[2]:
            seen = f"Error: {error}" if error else f"It returns {units}."
            raise ValueError(
                "The denoiser must return images with as many channels as the images "
                "of the operator. For an ImageDenoiser that reads a noise level, set "
                f"channels={image_shape[2]}. Received: images of {image_shape[2]} "
                f"channels, and the denoiser {self.denoiser.name!r}, which reads "
                f"{channels}. {seen}"
            ) from error

    def _check_data_format(self) -> None:
        for layer in flatten_layers(self.denoiser):
            if getattr(layer, "data_format", None) == "channels_first":
                raise ValueError(
                    "Images have the channels as their last axis. Create the layers of "
                    'the denoiser with data_format="channels_last". Received: layer '
                    f"'{layer.name}' with data_format='channels_first'."
                )

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Computes all that is constant in a solve, A^T y above all.

        Args:
            inputs: Measurements y, a tensor `(batch, ...)`; or a list of y and a noise
                level, a tensor `(batch,)` or `(batch, 1)` in the unit of the images.
            training: Boolean. Passed to `normalized_kernel` of layers of the denoiser.

        Returns:
            Dict of the tensor `"backprojection"`, A^T y, `(batch, height, width,
            channels)` in float32 or better, and the injection of the denoiser.
        """
        measurements, *noise = _as_list(inputs)
        check_real(keras.backend.standardize_dtype(measurements.dtype))
        if not self.built:
            shapes = [tuple(one.shape) for one in (measurements, *noise)]
            self.build(shapes if noise else shapes[0])
        expected = self.operator.measurement_shape
        if None not in measurements.shape[1:]:
            self.operator.check_shape("measurements", measurements.shape, expected)
        # A function that was traced for several sizes finds out at run time.
        measurements = tf.ensure_shape(measurements, (None, *expected))
        back = self.operator.adjoint(at_least_float32(measurements))
        seen = ops.cast(back, self.compute_dtype)
        if noise:
            level = ops.cast(ops.reshape(noise[0], (-1, 1, 1, 1)), seen.dtype)
            condition = ops.zeros_like(seen[..., :1]) + level
            seen = ops.concatenate([seen, condition], axis=-1)
        injection = {
            "backprojection": back,
            "denoiser": self.denoiser_cell.inject(seen, training=training),
        }
        if self.operator.weights:
            # Zero weights ignore all measurements: any step is right, but not 0 / 0.
            norm = ops.maximum(self.operator.norm, 1e-12)
            injection["norm"] = ops.cast(norm, back.dtype)
        return injection

    def operator_norm(self, injection: dict[str, Any]) -> Any:
        """Returns ||A||, a float or, if A has weights, a tensor of this solve.

        Args:
            injection: Result of `inject`.
        """
        return injection["norm"] if "norm" in injection else self.operator.norm

    def initial_state(self, injection: dict[str, Any]) -> Any:
        """Returns A^T y / ||A||^2."""
        state = injection["backprojection"] / self.operator_norm(injection) ** 2
        return ops.cast(state, self.compute_dtype)

    def denoise(self, images: Any, injection: dict[str, Any]) -> Any:
        """Applies the denoiser.

        Args:
            images: Tensor `(batch, height, width, channels)`.
            injection: Result of `inject`.
        """
        images = ops.cast(images, self.denoiser_cell.compute_dtype)
        return self.denoiser_cell(images, injection["denoiser"])

    def denoiser_constant(self, injection: dict[str, Any]) -> Any:
        """Returns a Lipschitz constant of the denoiser, or `None` if it is unknown.

        It is known for an `ImageDenoiser` with `max_norm`.

        Args:
            injection: Result of `inject`.
        """
        denoiser = self.denoiser
        if type(denoiser) is not ImageDenoiser or "call" in vars(denoiser):
            return None
        return denoiser.lipschitz_constant(injection["denoiser"].get("kernels"))

    def get_config(self) -> dict[str, Any]:
        config = {
            name: keras.saving.serialize_keras_object(getattr(self, name))
            for name in ("operator", "denoiser")
        }
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ReconstructionCell":
        layers = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("operator", "denoiser")
        }
        return cls(**{**config, **layers})


@keras.saving.register_keras_serializable(package="deq_keras")
class ProximalGradientCell(ReconstructionCell):
    """Cell of a proximal gradient method with a learned denoiser D.

    ```
    f(z, y) = D(z - tau A^T (A z - y))
    ```

    At the equilibrium z*, a step toward the measurements y and the denoiser cancel.
    The step size tau is learned, within (0, 2 / ||A||^2), where the step toward the
    measurements does not expand. A^T y is computed once per solve.

    `DEQ(cell)` uses the Neumann gradient, Anderson acceleration to a tolerance of 1e-4
    and no penalty, unless you choose others.

    `deq_keras.diagnostics.certify` bounds the distance to the equilibrium if D is an
    `ImageDenoiser` whose `lipschitz_constant` is below 1, and the structure of A yields
    its norm (`norm_bound`).

    Args:
        operator: `LinearOperator` A, which maps images to measurements.
        denoiser: Keras layer or model D that maps images to images of the same shape.
            It must not contain batch normalization or dropout. See `ImageDenoiser`.
        step_size: Float in (0, 1). Initial tau, relative to 2 / ||A||^2. Defaults to
            `0.5`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, height, width, channels)`. The image.
        injection: Result of `inject` for this solve.

    Input shape:
        Of the `DEQ` layer: measurements `(batch, ...)`, or a list of measurements and
        a noise level, `(batch,)` or `(batch, 1)`, which the denoiser then reads as a
        further channel.

    Output shape:
        `(batch, height, width, channels)`.

    Raises:
        ValueError: If an argument is invalid, the measurements do not fit the operator,
            or `operator.adjoint` is not the adjoint of `operator.call`.

    Example:

    >>> operator = deq_keras.layers.Blur(np.ones((3, 3)) / 9, (8, 8, 1))
    >>> cell = deq_keras.layers.ProximalGradientCell(
    ...     operator, deq_keras.layers.ImageDenoiser(filters=8, num_layers=3))
    >>> model = keras.Sequential([
    ...     keras.Input((8, 8, 1)), deq_keras.layers.DEQ(cell)])
    >>> model.output_shape
    (None, 8, 8, 1)

    Reference:

    - Gilton, Ongie and Willett (2021), "Deep equilibrium architectures for inverse
      problems in imaging".
    """

    def __init__(
        self,
        operator: LinearOperator,
        denoiser: keras.layers.Layer,
        step_size: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(operator, denoiser, **kwargs)
        self.step_size = check_open_fraction("step_size", step_size)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        logit = math.log(self.step_size / (1 - self.step_size))
        self.step_logit = self.add_weight(
            (), keras.initializers.Constant(logit), name="step_logit", autocast=False
        )

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        injection = super().inject(inputs, training)
        largest = 2 / self.operator_norm(injection) ** 2
        step = largest * ops.sigmoid(at_least_float32(self.step_logit))
        return {**injection, "step": ops.cast(step, injection["backprojection"].dtype)}

    def call(self, state: Any, injection: dict[str, Any]) -> Any:
        # A product with A^T A in half precision would lose the details of the image.
        images = at_least_float32(state)
        slope = self.operator.normal(images) - injection["backprojection"]
        images = images - injection["step"] * slope
        return ops.cast(self.denoise(images, injection), self.compute_dtype)

    def lipschitz_constant(self, injection: dict[str, Any]) -> Any:
        """Returns the constant of the denoiser, which the data step does not exceed.

        Returns `None` if it is unknown, or the norm of A is an estimate. See
        `EquilibriumCell.lipschitz_constant`.
        """
        if self.operator.norm_bound() is None:
            return None
        return self.denoiser_constant(injection)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "step_size": self.step_size}


@keras.saving.register_keras_serializable(package="deq_keras")
class HalfQuadraticCell(ReconstructionCell):
    """Cell of half-quadratic splitting with a learned denoiser D.

    ```
    f(z, y) = (A^T A + mu)^-1 (A^T y + mu D(z))
    ```

    The data step minimizes |A x - y|^2 + mu |x - D(z)|^2 exactly, so it needs fewer
    evaluations than `ProximalGradientCell` if A is badly conditioned. It requires an
    operator with an `inverse`: a circular `Blur`, `Inpainting`, `Downsampling`,
    `FourierSampling` or `MatrixOperator`. mu is learned.

    `DEQ(cell)` uses the Neumann gradient, Anderson acceleration to a tolerance of 1e-4
    and no penalty, unless you choose others.

    `deq_keras.diagnostics.certify` bounds the distance to the equilibrium if D is an
    `ImageDenoiser` whose `lipschitz_constant` is below 1.

    Args:
        operator: `LinearOperator` A with an `inverse`.
        denoiser: Keras layer or model D that maps images to images of the same shape.
            It must not contain batch normalization or dropout. See `ImageDenoiser`.
        mu: Positive float. Initial mu, relative to ||A||^2. Defaults to `0.1`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, height, width, channels)`. The image.
        injection: Result of `inject` for this solve.

    Input shape:
        See `ProximalGradientCell`.

    Output shape:
        `(batch, height, width, channels)`.

    Raises:
        ValueError: See `ProximalGradientCell`; also if the operator has no `inverse`.

    Example:

    >>> mask = np.random.default_rng(0).uniform(size=(8, 8)) < 0.5
    >>> cell = deq_keras.layers.HalfQuadraticCell(
    ...     deq_keras.layers.Inpainting(mask, (8, 8, 1)),
    ...     deq_keras.layers.ImageDenoiser(filters=8, num_layers=3))
    >>> deq = deq_keras.layers.DEQ(cell)
    >>> tuple(deq(np.ones((2, 8, 8, 1), "float32")).shape)
    (2, 8, 8, 1)

    Reference:

    - Zhang et al. (2017), "Learning deep CNN denoiser prior for image restoration".
    """

    def __init__(
        self,
        operator: LinearOperator,
        denoiser: keras.layers.Layer,
        mu: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(operator, denoiser, **kwargs)
        self.mu = check_positive("mu", mu)
        operator.inverse(ops.zeros((1, *operator.image_shape)), 1.0)  # It may refuse.

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.log_mu = self.add_weight(
            (),
            keras.initializers.Constant(math.log(self.mu)),
            name="log_mu",
            autocast=False,
        )

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        injection = super().inject(inputs, training)
        norm = self.operator_norm(injection)
        mu = norm**2 * ops.exp(at_least_float32(self.log_mu))
        mu = ops.cast(mu, injection["backprojection"].dtype)
        return {**injection, "mu": mu, "factor": self.operator.inverse_factor(mu)}

    def call(self, state: Any, injection: dict[str, Any]) -> Any:
        mu, denoised = injection["mu"], at_least_float32(self.denoise(state, injection))
        images = injection["backprojection"] + mu * denoised
        images = self.operator.apply_inverse(images, injection["factor"])
        return ops.cast(images, self.compute_dtype)

    def lipschitz_constant(self, injection: dict[str, Any]) -> Any:
        """Returns the constant of the denoiser, which the data step does not exceed.

        Returns `None` if it is unknown. See `EquilibriumCell.lipschitz_constant`.
        """
        return self.denoiser_constant(injection)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mu": self.mu}


def _as_list(inputs: Any) -> list[Any]:
    """Returns a list of inputs, or of their shapes, given one or several."""
    is_several = isinstance(inputs, list | tuple) and not isinstance(
        inputs[0], int | type(None)
    )
    return list(inputs) if is_several else [inputs]


@keras.saving.register_keras_serializable(package="deq_keras")
def _with_condition(state: Any, inputs: Any) -> Any:
    """Appends the channels of `inputs` that `state` does not have."""
    return ops.concatenate([state, inputs[..., state.shape[-1] :]], axis=-1)
