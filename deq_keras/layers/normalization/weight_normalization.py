"""Weight normalization for Keras layers with a kernel."""

import keras
from keras import ops


class WeightNormalization:
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

    The base class must create `_kernel` in `build`, with output units on the last axis,
    like `keras.layers.Dense` and the convolutions. Weights are saved in the order of
    `weights`: `v`, the bias if any, `g`.

    Reference:
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868).
    """

    def build(self, input_shape):
        if self.quantization_mode is not None:
            raise self._quantization_error(f"dtype={self.dtype_policy.name!r}")
        super().build(input_shape)
        # `super().build` has marked the layer as built too early.
        self.built = False
        self.gain = self.add_weight(
            name="gain",
            shape=(self._kernel.shape[-1],),
            initializer=self._initialize_gain,
            dtype=self._kernel.dtype,
            autocast=False,
        )
        self.built = True

    def add_weight(self, *args, name=None, **kwargs):
        # The norm of a half-precision kernel would be less accurate than the variable.
        if name == "kernel":
            kwargs["autocast"] = False
        return super().add_weight(*args, name=name, **kwargs)

    def _initialize_gain(self, shape, dtype=None):
        squared_norm = _squared_norm(_at_least_float32(self._kernel))
        return ops.cast(ops.reshape(ops.sqrt(squared_norm), shape), dtype)

    @property
    def direction(self):
        """Returns the variable `v`, with the shape of the kernel."""
        return self._kernel

    @property
    def kernel(self):
        """Returns the kernel that the layer applies, computed from `v` and `g`."""
        return self.normalized_kernel()

    def normalized_kernel(self, mask=None):
        """Computes the kernel from its direction and gain.

        Args:
            mask: Optional tensor that broadcasts to `direction`. Multiplies it before
                normalization, for weight dropout. Defaults to `None`.

        Returns:
            Tensor with the shape of `direction` in the compute dtype.

        Raises:
            ValueError: If the layer has not been built.
        """
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' has no kernel before it is built. Call "
                "`build(input_shape)`, or the layer on its inputs, first."
            )
        direction = _at_least_float32(self._kernel)
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

    def _kernel_or_own(self, kernel):
        if kernel is None:
            return self.normalized_kernel()
        if tuple(kernel.shape) != tuple(self._kernel.shape):
            raise ValueError(
                f"Layer '{self.name}' expected a `kernel` of shape "
                f"{tuple(self._kernel.shape)}, as `normalized_kernel()` returns it. "
                f"Received: kernel of shape {tuple(kernel.shape)}."
            )
        return kernel

    # Overridden because Keras stores only the plain kernel and bias.
    def save_own_variables(self, store):
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store):
        keras.layers.Layer.load_own_variables(self, store)

    def enable_lora(self, *args, **kwargs):
        raise NotImplementedError(
            f"Layer '{self.name}' does not support LoRA: a low-rank update would "
            "be added to the direction, not to the normalized kernel."
        )

    def quantize(self, mode=None, *args, **kwargs):
        raise self._quantization_error(f"mode={mode!r}")

    def _quantization_error(self, received):
        return NotImplementedError(
            f"Layer '{self.name}' cannot be quantized: copy `layer.kernel` into a "
            f"plain layer, and quantize that. Received: {received}."
        )


def _at_least_float32(variable):
    tensor = ops.convert_to_tensor(variable)
    return ops.cast(tensor, keras.backend.result_type(tensor.dtype, "float32"))


def _squared_norm(direction):
    axes = tuple(range(len(direction.shape) - 1))
    return ops.sum(ops.square(direction), axis=axes, keepdims=True)
