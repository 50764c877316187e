"""Spectral normalization that clips the norm of a kernel, and layers that have it."""

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_count, check_positive
from deq_keras.core.linearization import linearize
from deq_keras.core.structure import at_least_float32
from deq_keras.layers.normalization.normalized_kernel import NormalizedKernel

# Iterations on the initial kernel. One iteration per training step suffices for a
# kernel that changes slowly, but not for a random initial vector.
_FIRST_ITERATIONS = 20

# Further iterations at inference where no bound is known.
_LAST_ITERATIONS = 10

# Each Gram step halves the logarithm of the excess of the bound. After eight of them,
# it is at most rank^(1 / 2^9): 1.4 % for 1,024 units with equal singular values.
_GRAM_STEPS = 8


class SpectralNormalization(NormalizedKernel):
    """Mixin that bounds the largest singular value of a Keras layer's linear map.

    ```
    kernel = w * min(1, max_norm / sigma),   sigma = ||A v||,  v = A^T A v / ||A^T A v||
    ```

    A is the linear map with the kernel `w`: for a dense layer `w` itself, for a
    convolution the map of a whole feature map, with its padding and strides. One power
    iteration updates `v` in each training step. At inference, `_inference_norm` takes
    the place of sigma, because the weights can be any. A kernel with a norm below
    `max_norm` is used unchanged.

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
        """Returns the shape of `v`, an input of a batch of one."""
        raise NotImplementedError

    def _linear(self, inputs, kernel):
        """Returns A applied to inputs."""
        raise NotImplementedError

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
            norm = self._norm(kernel, vector)
        else:
            norm = self._inference_norm(kernel, vector)
        # The quotient is exactly one if the norm is below `max_norm`.
        scale = self.max_norm / ops.maximum(norm, self.max_norm)
        return ops.cast(kernel * scale, self.compute_dtype)

    def _wide_vector(self):
        # Rounding to the dtype of the variable changes the length.
        return _unit(at_least_float32(self.singular_vector))

    def _norm(self, kernel, vector):
        """Returns ||A v||, which has a gradient only for the kernel."""
        image = self._linear(ops.stop_gradient(vector), kernel)
        return ops.sum(image * ops.stop_gradient(_unit(image)))

    def _inference_norm(self, kernel, vector):
        """Returns a norm for any weights, with the gradient of `_norm`."""
        for _ in range(_LAST_ITERATIONS):
            vector = self._iterate(vector, kernel)
        return self._norm(kernel, vector)

    def _iterate(self, vector, kernel):
        """Returns A^T A v at length one, or `v` if that is zero or not finite."""
        kernel = ops.stop_gradient(kernel)
        # A is linear, so the vector-Jacobian product with A v is A^T A v.
        image = linearize(lambda point: self._linear(point, kernel), vector)
        return ops.stop_gradient(_unit(image.vjp(image.value), otherwise=vector))

    def get_config(self):
        return {**super().get_config(), "max_norm": self.max_norm}


@keras.saving.register_keras_serializable(package="deq_keras")
class SpectrallyNormalizedDense(SpectralNormalization, keras.layers.Dense):
    """Dense layer whose kernel has a spectral norm of at most `max_norm`.

    ```
    outputs = activation(inputs @ (w * min(1, max_norm / sigma)) + bias)
    ```

    with sigma the largest singular value of `w`. With `max_norm` below one and an
    activation that does not expand, such as tanh or ReLU, a cell of this layer has
    exactly one equilibrium.

    At inference, and for `kernel`, an upper bound takes the place of sigma, which is at
    most 1.4 % larger for up to 1,024 units. The norm is thus at most `max_norm`, for
    all weights. The bound costs 8 products of square matrices for each call or, in a
    cell, for each solve. In a training step, a power iteration estimates sigma. Its
    vector is a weight of the layer, and each step updates it once, so the norm can
    exceed `max_norm` by a few percent while the kernel changes. Unlike
    `keras.layers.SpectralNormalization`, the layer never scales kernels up, and does
    not update the vector during a solve.

    Args:
        units: Positive integer. Size of the output space.
        max_norm: Positive float. Bound of the spectral norm. Defaults to `0.99`, as
            torchdeq recommends for implicit graph networks.
        **kwargs: Other arguments of `keras.layers.Dense`, with the same meaning.
            `kernel_regularizer` and `kernel_constraint` act on `w`.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., input_dim)`.
        kernel: Tensor of shape `(input_dim, units)`, the value of
            `normalized_kernel(training)` at the start of a solve. Defaults to `None`,
            which computes it from the weights in this call.
        training: Boolean. Whether a call without `kernel` updates the vector.

    Input shape:
        `(batch, ..., input_dim)`.

    Output shape:
        `(batch, ..., units)`.

    Raises:
        ValueError: If `max_norm` is not positive.

    Example:

    >>> layer = SpectrallyNormalizedDense(16, max_norm=0.9, activation="tanh")
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.cell_from(layer))
    >>> tuple(deq(keras.ops.ones((2, 3))).shape)
    (2, 16)

    Reference:
        [Miyato et al., 2018](https://arxiv.org/abs/1802.05957).
    """

    def __init__(self, units, *args, max_norm=0.99, **kwargs):
        super().__init__(
            check_count("units", units), *args, max_norm=max_norm, **kwargs
        )

    def _vector_shape(self, input_shape):
        return (1, input_shape[-1])

    def _linear(self, inputs, kernel):
        return ops.matmul(inputs, kernel)

    def _inference_norm(self, kernel, vector):
        norm = self._norm(kernel, vector)
        bound = spectral_norm_bound(ops.stop_gradient(kernel), _GRAM_STEPS)
        return norm + ops.stop_gradient(bound - norm)


@keras.saving.register_keras_serializable(package="deq_keras")
class SpectrallyNormalizedConv2D(SpectralNormalization, keras.layers.Conv2D):
    """2D convolution whose linear map has a spectral norm of at most `max_norm`.

    ```
    outputs = activation(conv(inputs, w * min(1, max_norm / sigma)) + bias)
    ```

    with sigma the largest singular value of the convolution with `w`, as a map of whole
    feature maps, with its padding, strides and dilation. The norm of the kernel as
    a matrix, which other implementations use, is not a bound of this norm.

    A power iteration estimates sigma from below, by one step in each training step and
    ten more at inference. If a large learning rate changes the kernel quickly, the norm
    can exceed `max_norm` by several percent, also at inference. See
    `SpectrallyNormalizedDense`, which has a bound instead.

    The bound holds for the height and width with which the layer was built. The layer
    accepts no other sizes, because the norm grows with the size of the map.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive integer, or a tuple of two. Height and width of the
            window.
        max_norm: Positive float. Bound of the spectral norm. Defaults to `0.99`, as
            torchdeq recommends for implicit graph networks.
        **kwargs: Other arguments of `keras.layers.Conv2D`; see
            `SpectrallyNormalizedDense`, also for the argument `kernel` of a call.

    Input shape:
        `(batch, height, width, channels)`, with a static height and width.

    Output shape:
        `(batch, new_height, new_width, filters)`.

    Raises:
        ValueError: If `max_norm` is not positive, or the height or width is unknown.

    Example:

    >>> layer = SpectrallyNormalizedConv2D(4, 3, max_norm=0.9, padding="same")
    >>> tuple(layer(keras.ops.ones((2, 8, 8, 5))).shape)
    (2, 8, 8, 4)

    Reference:

    - [Miyato et al., 2018](https://arxiv.org/abs/1802.05957).
    - [Gouk et al., 2018](https://arxiv.org/abs/1804.04368), for convolutions.
    """

    def __init__(self, filters, kernel_size, *args, max_norm=0.99, **kwargs):
        super().__init__(
            check_count("filters", filters),
            kernel_size,
            *args,
            max_norm=max_norm,
            **kwargs,
        )

    def _vector_shape(self, input_shape):
        shape = tuple(input_shape[1:])
        if None in shape:
            raise ValueError(
                f"Layer '{self.name}' bounds the norm of a map of one size. Build it "
                "with a static height and width, for example keras.Input((32, 32, 3)). "
                f"Received: inputs of shape {tuple(input_shape)}."
            )
        axes = {axis: size for axis, size in enumerate(shape, start=1)}
        self.input_spec = keras.InputSpec(ndim=len(input_shape), axes=axes)
        return (1, *shape)

    def _linear(self, inputs, kernel):
        return self.convolution_op(inputs, kernel)


def _unit(vector, otherwise=0.0):
    """Scales a vector to length one; returns `otherwise` if the length is 0 or NaN."""
    length = ops.sqrt(ops.sum(ops.square(vector)))
    has_length = length > 0
    return ops.where(has_length, vector / ops.where(has_length, length, 1), otherwise)


def spectral_norm_bound(matrix, num_steps=12):
    """Returns upper bounds of the spectral norms of matrices, a tensor `(...)`.

    Computes the Frobenius norm of G after several steps G <- G^T G, which bounds the
    norm from above at every step. A power iteration would bound it from below. Every
    export format supports these products, but not a singular value decomposition.

    Args:
        matrix: Tensor `(..., rows, columns)`.
        num_steps: Positive integer k. The bound exceeds the norm by at most the factor
            rank^(1 / 2^(k + 1)). Defaults to `12`: 0.09 % for a rank of 1,024.

    Reference:

    - Delattre, Barthelemy, Araujo and Allauzen (2023), "Efficient bound of Lipschitz
      constant for convolutional layers by Gram iteration".
    """
    gram = at_least_float32(matrix)
    if gram.shape[-2] < gram.shape[-1]:
        gram = ops.swapaxes(gram, -1, -2)
    log_norm, power = 0.0, 1.0
    for _ in range(num_steps):
        # Scaling keeps the powers of large and small matrices finite.
        size = _frobenius(gram)
        log_norm += power * ops.log(size)
        gram = gram / size
        gram = ops.matmul(ops.swapaxes(gram, -1, -2), gram)
        power /= 2
    log_norm += power * ops.log(_frobenius(gram))
    return ops.exp(log_norm[..., 0, 0])


def _frobenius(matrix):
    smallest = 1e-30 if matrix.dtype == "float32" else 1e-250
    squares = ops.sum(ops.square(matrix), axis=(-2, -1), keepdims=True)
    return ops.maximum(ops.sqrt(squares), smallest)
