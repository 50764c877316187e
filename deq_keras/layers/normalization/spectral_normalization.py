"""Spectral normalization that clips the norm of a kernel."""

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_positive
from deq_keras.core.linearization import linearize
from deq_keras.layers.normalization.normalized_kernel import (
    NormalizedKernel,
    at_least_float32,
)

# Iterations on the initial kernel. One iteration per training step suffices for a
# kernel that changes slowly, but not for a random initial vector.
_FIRST_ITERATIONS = 20


class SpectralNormalization(NormalizedKernel):
    """Mixin that bounds the largest singular value of a Keras layer's linear map.

    ```
    kernel = w * min(1, max_norm / sigma),   sigma = ||A v||,  v = A^T A v / ||A^T A v||
    ```

    A is the linear map with the kernel `w`: for a dense layer `w` itself, for a
    convolution the map of a whole feature map, with its padding and strides. One power
    iteration updates `v` in each training step. A kernel with a norm below `max_norm`
    is used unchanged.

    `normalized_kernel(training=True)` is the only place that updates `v`. In an
    equilibrium cell, call it once per solve, in `inject`, and pass the result to the
    layer as `kernel`. Without this argument, each call of the layer computes the
    kernel. Cells made by `cell_from` compute it in `inject`.

    Weights are saved in the order of `weights`: `w`, the bias if any, `v`.

    Reference:
        [Miyato et al., 2018](https://arxiv.org/abs/1802.05957).
    """

    def __init__(self, *args, max_norm=0.99, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_norm = check_positive("max_norm", max_norm)

    def _add_normalization_weight(self, input_shape):
        # Each replica updates its own copy. `add_weight` does not support that, and
        # replicas cannot be merged while `inject` is traced.
        self.singular_vector = keras.Variable(
            self._initialize_vector,
            shape=self._vector_shape(input_shape),
            dtype=self._kernel.dtype,
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
            synchronization="on_read",
            name="singular_vector",
        )

    def _vector_shape(self, input_shape):
        return (1, input_shape[-1])

    def _initialize_vector(self, shape, dtype=None):
        kernel = at_least_float32(self._kernel)
        vector = _unit(keras.random.normal(shape, dtype=kernel.dtype, seed=0))
        # Keras runs initializers in a `tf.init_scope`, where gradient tapes record
        # nothing. A graph needs no tape.
        iterate = tf.function(self._iterate, autograph=False)
        for _ in range(_FIRST_ITERATIONS):
            vector = iterate(vector, kernel)
        return ops.cast(vector, dtype)

    @property
    def spectral_norm(self):
        """Returns the estimate of the norm of the kernel before it is scaled."""
        return self._norm(self._wide_kernel(), self._wide_vector())

    def normalized_kernel(self, training=False):
        """Computes the kernel that the layer applies.

        Args:
            training: Boolean. Whether to update `singular_vector` before.

        Returns:
            Tensor with the shape of the kernel in the compute dtype.

        Raises:
            ValueError: If the layer has not been built.
        """
        kernel, vector = self._wide_kernel(), self._wide_vector()
        if training:
            vector = self._iterate(vector, kernel)
            self.singular_vector.assign(ops.cast(vector, self.singular_vector.dtype))
        # The quotient is exactly one if the norm is below `max_norm`.
        scale = self.max_norm / ops.maximum(self._norm(kernel, vector), self.max_norm)
        return ops.cast(kernel * scale, self.compute_dtype)

    def _wide_vector(self):
        # Rounding to the dtype of the variable changes the length.
        return _unit(at_least_float32(self.singular_vector))

    def _norm(self, kernel, vector):
        """Returns ||A v||, which has a gradient only for the kernel."""
        image = self._linear(ops.stop_gradient(vector), kernel)
        return ops.sum(image * ops.stop_gradient(_unit(image)))

    def _iterate(self, vector, kernel):
        """Returns A^T A v at length one, or `v` if that is zero or not finite."""
        kernel = ops.stop_gradient(kernel)
        image = linearize(lambda point: self._linear(point, kernel), vector)
        return ops.stop_gradient(_unit(image.vjp(image.value), otherwise=vector))

    def get_config(self):
        return {**super().get_config(), "max_norm": self.max_norm}


def _unit(vector, otherwise=0.0):
    """Scales a vector to length one; returns `otherwise` if the length is 0 or NaN."""
    length = ops.sqrt(ops.sum(ops.square(vector)))
    has_length = length > 0
    return ops.where(has_length, vector / ops.where(has_length, length, 1), otherwise)
