"""Weight normalization, and the layers of Keras that have it."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.structure import at_least_float32
from deq_keras.layers.normalization.normalized_kernel import NormalizedKernel


class WeightNormalization(NormalizedKernel):
    """Mixin that adds weight normalization to a Keras layer.

    The kernel is factored into its direction `v` and, for each output unit, its norm
    `g` (Salimans and Kingma, 2016):

    ```
    kernel[..., j] = g[j] * v[..., j] / ||v[..., j]||
    ```

    Initially, `g = ||v||`, so the layer computes the same function as the plain layer
    with the same initializer. The denominator does not contain an epsilon. A unit whose
    `v` is exactly zero has a zero kernel and a zero gradient.

    In an equilibrium cell, call `normalized_kernel()` once per solve, in `inject`, and
    pass the result to the layer as `kernel`. An evaluation then costs as much as with
    the plain layer, and gradients reach `g` and `v` through the injection. Without this
    argument, each call of the layer normalizes the kernel.

    Weights are saved in the order of `weights`: `v`, the bias if any, `g`.

    Reference:
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868).
    """

    def _prepare_normalization(self, input_shape: Any) -> None:
        self.gain = self.add_weight(
            name="gain",
            shape=(self._kernel.shape[-1],),
            initializer=self._initialize_gain,
            dtype=self._kernel.dtype,
            autocast=False,
        )

    def _initialize_gain(self, shape: Any, dtype: Any = None) -> Any:
        squared_norm = _squared_norm(at_least_float32(self._kernel))
        return ops.cast(ops.reshape(ops.sqrt(squared_norm), shape), dtype)

    @property
    def direction(self) -> Any:
        """Returns the variable `v`, with the shape of the kernel."""
        return self._kernel

    def normalized_kernel(self, mask: Any = None, training: bool = False) -> Any:
        """Computes the kernel from its direction and gain.

        Args:
            mask: Optional tensor that broadcasts to `direction`. Multiplies it before
                normalization, for weight dropout. Defaults to `None`.
            training: Boolean. Ignored.

        Returns:
            Tensor with the shape of `direction` in the compute dtype.

        Raises:
            ValueError: If the layer has not been built.
        """
        del training
        direction = self._wide_kernel()
        if mask is not None:
            direction = direction * ops.cast(mask, direction.dtype)
        squared_norm = _squared_norm(direction)
        has_direction = squared_norm > 0
        # The inner `where` avoids NaN in the gradient of the unused branch.
        inverse_norm = ops.where(
            has_direction, ops.rsqrt(ops.where(has_direction, squared_norm, 1)), 0
        )
        gain = ops.cast(self.gain, direction.dtype)
        return ops.cast(direction * (gain * inverse_norm), self.compute_dtype)


@keras.saving.register_keras_serializable(package="deq_keras")
class WeightNormalizedDense(WeightNormalization, keras.layers.Dense):
    """Dense layer with a weight-normalized kernel.

    ```
    outputs = activation(inputs @ (g * v / ||v||) + bias)
    ```

    with the norm over the inputs of each unit, so `g` has the shape `(units,)`.
    Weight normalization bounds how far one step of an optimizer can move a cell,
    which keeps equilibria stable in training (Bai, Koltun and Kolter, 2020).

    Args:
        units: Positive integer. Size of the output space.
        **kwargs: Other arguments of `keras.layers.Dense`, with the same meaning.
            `kernel_regularizer` and `kernel_constraint` act on `v`.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., input_dim)`.
        kernel: Tensor with the shape of `v`, the value of `normalized_kernel()` at the
            start of a solve. Defaults to `None`, which computes it from the weights in
            this call.

    Input shape:
        `(batch, ..., input_dim)`.

    Output shape:
        `(batch, ..., units)`.

    Example:

    >>> layer = WeightNormalizedDense(4)
    >>> layer.build((None, 3))
    >>> kernel = layer.normalized_kernel()       # once, in `inject`
    >>> tuple(layer(keras.ops.ones((2, 3)), kernel=kernel).shape)
    (2, 4)

    Reference:
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868).
    """


@keras.saving.register_keras_serializable(package="deq_keras")
class WeightNormalizedConv1D(WeightNormalization, keras.layers.Conv1D):
    """1D convolution with a weight-normalized kernel.

    ```
    outputs = activation(conv(inputs, g * v / ||v||) + bias)
    ```

    with the norm over the taps and input channels of each filter, so `g` has the
    shape `(filters,)`.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive integer, or a tuple of one. Number of taps.
        **kwargs: Other arguments of `keras.layers.Conv1D`; see
            `WeightNormalizedDense`, also for the argument `kernel` of a call.

    Input shape:
        `(batch, length, channels)`.

    Output shape:
        `(batch, new_length, filters)`.

    Example:

    >>> layer = WeightNormalizedConv1D(4, 3, padding="causal")
    >>> tuple(layer(keras.ops.ones((2, 10, 5))).shape)
    (2, 10, 4)
    """


@keras.saving.register_keras_serializable(package="deq_keras")
class WeightNormalizedConv2D(WeightNormalization, keras.layers.Conv2D):
    """2D convolution with a weight-normalized kernel.

    ```
    outputs = activation(conv(inputs, g * v / ||v||) + bias)
    ```

    with the norm over the window and input channels of each filter, so `g` has
    the shape `(filters,)`.

    At stride 1 and with an odd kernel, `padding="same"` pads both sides equally, like
    PyTorch's `padding=kernel_size // 2`. At stride 2 and with even sizes, Keras pads
    one side more. Pad explicitly and use `"valid"` in this case.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive integer, or a tuple of two. Height and width of the
            window.
        **kwargs: Other arguments of `keras.layers.Conv2D`; see
            `WeightNormalizedDense`, also for the argument `kernel` of a call.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, new_height, new_width, filters)`.

    Example:

    >>> layer = WeightNormalizedConv2D(4, 3, padding="same", use_bias=False)
    >>> tuple(layer(keras.ops.ones((2, 8, 8, 5))).shape)
    (2, 8, 8, 4)
    """


def _squared_norm(direction: Any) -> Any:
    axes = tuple(range(len(direction.shape) - 1))
    return ops.sum(ops.square(direction), axis=axes, keepdims=True)
