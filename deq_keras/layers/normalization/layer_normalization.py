"""Layer normalization with a correct second derivative."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_boolean, check_positive
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype


class AffineNormalization(keras.layers.Layer):
    """Base class of normalizations with an optional scale and offset.

    Args:
        epsilon: Positive float. Added to the variance.
        center: Boolean. Whether to add `beta`.
        scale: Boolean. Whether to multiply by `gamma`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(
        self, epsilon: float, center: bool, scale: bool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.epsilon = check_positive("epsilon", epsilon)
        self.center = check_boolean("center", center)
        self.scale = check_boolean("scale", scale)
        self.supports_masking = True

    def _create_weights(self, size: int) -> None:
        """Creates `gamma` and `beta` of shape `(size,)`, or sets them to `None`."""
        self.gamma, self.beta = (
            self.add_weight((size,), initializer, name=name, autocast=False)
            if is_used
            else None
            for name, initializer, is_used in (
                ("gamma", "ones", self.scale),
                ("beta", "zeros", self.center),
            )
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


@keras.saving.register_keras_serializable(package="deq_keras")
class LayerNormalization(AffineNormalization):
    """Layer normalization with a correct second derivative.

    ```
    outputs = gamma * (inputs - mean) / sqrt(variance + epsilon) + beta
    ```

    with mean and biased variance over the last axis. It computes the same function as
    `keras.layers.LayerNormalization`, whose second-order gradient is wrong on
    TensorFlow, because its variance stops the gradient of the mean. Use this layer in
    cells with a Jacobian regularizer.

    The variance is the mean square of the centered inputs. Statistics use float32
    (float64 for float64 inputs), independent of the compute dtype.

    Args:
        epsilon: Positive float. Added to the variance. Defaults to `1e-5`, as in the
            reference, the authors' PyTorch code (locuslab/deq). Keras uses `1e-3`.
        center: Boolean. Whether to add `beta`. Defaults to `True`.
        scale: Boolean. Whether to multiply by `gamma`. Defaults to `True`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of rank 2 or more, batch first.

    Input shape:
        `(batch, ..., features)`.

    Output shape:
        Same as the input shape.

    Raises:
        ValueError: If `epsilon` is not positive, or the number of features is
            not static.

    Example:

    >>> layer = LayerNormalization()
    >>> tuple(layer(keras.random.normal((2, 5, 8))).shape)
    (2, 5, 8)

    Reference:
        [Ba, Kiros and Hinton, 2016](https://arxiv.org/abs/1607.06450).
    """

    def __init__(
        self,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(epsilon, center, scale, **kwargs)

    def build(self, input_shape: Any) -> None:
        features = input_shape[-1]
        if features is None:
            raise ValueError(
                f"Layer '{self.name}' needs a static number of features on the last "
                f"axis. Received: inputs of shape {tuple(input_shape)}."
            )
        self._create_weights(features)

    def call(self, inputs: Any) -> Any:
        dtype = wide_dtype(inputs.dtype)
        wide = ops.cast(inputs, dtype)
        centered = wide - ops.mean(wide, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        outputs = centered * ops.rsqrt(variance + self.epsilon)
        if self.gamma is not None:
            outputs = outputs * ops.cast(self.gamma, dtype)
        if self.beta is not None:
            outputs = outputs + ops.cast(self.beta, dtype)
        return ops.cast(outputs, inputs.dtype)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, LayerNormalization)}
