"""Weight normalization for Keras layers with a kernel."""

from keras import ops

from deq_keras.layers.normalization.normalized_kernel import (
    NormalizedKernel,
    at_least_float32,
)


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

    def _add_normalization_weight(self, input_shape):
        self.gain = self.add_weight(
            name="gain",
            shape=(self._kernel.shape[-1],),
            initializer=self._initialize_gain,
            dtype=self._kernel.dtype,
            autocast=False,
        )

    def _initialize_gain(self, shape, dtype=None):
        squared_norm = _squared_norm(at_least_float32(self._kernel))
        return ops.cast(ops.reshape(ops.sqrt(squared_norm), shape), dtype)

    @property
    def direction(self):
        """Returns the variable `v`, with the shape of the kernel."""
        return self._kernel

    def normalized_kernel(self, mask=None, training=False):
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


def _squared_norm(direction):
    axes = tuple(range(len(direction.shape) - 1))
    return ops.sum(ops.square(direction), axis=axes, keepdims=True)
