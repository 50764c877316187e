"""Weight normalization, for any layer of Keras with a kernel."""

import keras
from keras import ops


class WeightNormalization:
    """Mixin that normalizes the kernel of a Keras layer by weight.

    The kernel is factored into its direction `v` and, for each output unit, its
    length `g` (Salimans and Kingma, 2016):

    ```
    kernel[..., j] = g[j] * v[..., j] / ||v[..., j]||
    ```

    At initialization `g = ||v||`, so the layer starts as the plain one with the
    same initializer. There is no epsilon in the denominator; a unit whose `v` is
    exactly zero has no direction, gets a kernel of zeros, and receives no
    gradient.

    In an equilibrium cell, call `normalized_kernel()` once per solve, in
    `inject`, and pass the result to the layer as `kernel`: iterating then costs
    what it costs with the plain layer, and the gradients reach `g` and `v`
    through the injection. Without that argument the layer normalizes for itself.

    The class it is mixed into creates `_kernel` in `build`, with output units on
    the last axis, as `keras.layers.Dense` and the convolutions do. Weights are
    saved in the order of `weights`: `v`, the bias if there is one, `g`.

    Reference:
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868).
    """

    def build(self, input_shape):
        if self.quantization_mode is not None:
            raise self._quantization_error(f"dtype={self.dtype_policy.name!r}")
        super().build(input_shape)
        # `super().build` has marked the layer as built, which is too early.
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
        # Norms of a kernel in half precision lose what the variable still has.
        if name == "kernel":
            kwargs["autocast"] = False
        return super().add_weight(*args, name=name, **kwargs)

    def _initialize_gain(self, shape, dtype=None):
        squared_norm = _squared_norm(_at_least_float32(self._kernel))
        return ops.cast(ops.reshape(ops.sqrt(squared_norm), shape), dtype)

    @property
    def direction(self):
        """The variable `v`, of the shape of the kernel."""
        return self._kernel

    @property
    def kernel(self):
        """The kernel that the layer applies, computed from `v` and `g`."""
        return self.normalized_kernel()

    def normalized_kernel(self, mask=None):
        """Computes the kernel from its direction and gain.

        Args:
            mask: Optional tensor, broadcast to `direction`, which is multiplied by it
                before it is normalized: dropout of weights. Defaults to `None`.

        Returns:
            Tensor of the shape of `direction` in the compute dtype.

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
        # The inner `where` keeps NaN out of the gradient of the unused branch.
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

    # Keras' own versions store the plain kernel and bias only.
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
