"""Spectral normalization that clips the norm of a kernel, and layers that have it."""

import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_positive
from deq_keras.core.serialization import Config
from deq_keras.core.structure import at_least_float32, wide_dtype
from deq_keras.layers.normalization.normalized_kernel import NormalizedKernel

# Each Gram step halves the logarithm of the excess of the bound. After eight of them,
# it is at most rank^(1 / 2^9): 1.4 % for 1,024 units with equal singular values.
_GRAM_STEPS = 8

# Steps of the Lanczos method, and the factor that raises its estimate. For 680 kernels
# of convolutions (normal, positive, Laplacian, with decaying channels; 1 to 32
# channels, 6 x 6 to 24 x 24 pixels), it was at most 2.2 % below the norm.
_LANCZOS_STEPS = 12
_SAFETY = 1.03

# Steps in training, from the input that the previous step found. A fraction of the
# first input is added to it, because another one can become the leading one. While Adam
# trained denoisers with a learning rate of 2e-3, the estimates were at most 5 % below
# the norm.
_TRAINING_STEPS = 4
_FRACTION = 0.6

# Largest relative change of a kernel for which the input of the previous step is used.
_NEAR = 0.2

# Squarings of the small matrix of the Lanczos method, whose leading eigenvector they
# separate from the others.
_SQUARINGS = 10


class SpectralNormalization(NormalizedKernel):
    """Mixin that bounds the largest singular value of a Keras layer's linear map.

    ```
    kernel = w * min(1, max_norm / sigma)
    ```

    sigma is the norm of the linear map A with the kernel `w`. A kernel whose sigma is
    below `max_norm` is used unchanged. Subclasses implement `_linear` and `_adjoint`,
    which apply A and A^T, and call `_create_start` in `_prepare_normalization`.

    The Lanczos method estimates sigma. A training step continues from the input that
    the previous one found, unless the kernel has changed by more than 20 %.

    In an equilibrium cell, call `normalized_kernel(training)` once per solve, in
    `inject`, and pass the result to the layer as `kernel`. Without this argument, each
    call of the layer computes the kernel. Cells made by `cell_from` compute it in
    `inject`.

    Reference:
        [Miyato et al., 2018](https://arxiv.org/abs/1802.05957).
    """

    def __init__(self, *args: Any, max_norm: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_norm = check_positive("max_norm", max_norm)

    def _create_start(self, start: np.ndarray) -> None:
        """Creates what the Lanczos method starts from.

        Args:
            start: Array, an input of A with the batch size 1.
        """
        self._start = start
        # These are not weights: a map can be much larger than the kernel, and files do
        # not need it. Each replica has its own.
        sizes = {"kernel": self._kernel.shape, "input": start.shape}
        self._before = types.SimpleNamespace(
            **{
                name: keras.Variable(
                    "zeros",
                    shape=size,
                    dtype=wide_dtype(self.variable_dtype),
                    trainable=False,
                    autocast=False,
                    aggregation="only_first_replica",
                    synchronization="on_read",
                    name=f"previous_{name}",
                )
                for name, size in sizes.items()
            }
        )

    @property
    def control_variables(self) -> list[keras.Variable]:
        """The variables that belong to the state of training, but not to the weights:
        the kernel of the last training step, and the input that it stretched most."""
        before = getattr(self, "_before", None)
        return [] if before is None else [*vars(before).values()]

    def _dense_kernel(self, kernel: Any) -> Any:
        """Returns the kernel that `_linear` and `_adjoint` apply."""
        return kernel

    def _linear(self, inputs: Any, kernel: Any) -> Any:
        """Returns A x."""
        raise NotImplementedError

    def _adjoint(self, outputs: Any, kernel: Any) -> Any:
        """Returns A^T y."""
        raise NotImplementedError

    @property
    def spectral_norm(self) -> Any:
        """Returns the estimate of the norm of the kernel before it is scaled."""
        return self._estimate(self._wide_kernel())

    def _norm(self, kernel: Any, training: bool) -> Any:
        """Returns sigma of a kernel in float32 or better, a scalar tensor."""
        return _SAFETY * self._estimate(kernel, training)

    def _estimate(self, kernel: Any, training: bool = False) -> Any:
        """Returns ||A x|| of an input x of length one; it has a gradient for `w`."""
        dense = self._dense_kernel(kernel)
        constant, first = ops.stop_gradient(dense), ops.cast(self._start, kernel.dtype)
        if training:
            kernel, before = ops.stop_gradient(kernel), self._before
            change = ops.sum(ops.square(kernel - before.kernel))
            start = before.input + _FRACTION * _unit(first)
            leading = tf.cond(
                change < _NEAR**2 * ops.sum(ops.square(kernel)),
                lambda: self._leading_input(constant, start, _TRAINING_STEPS),
                lambda: self._leading_input(constant, first, _LANCZOS_STEPS),
            )
            before.kernel.assign(kernel)
            before.input.assign(leading)
        else:
            leading = self._leading_input(constant, first, _LANCZOS_STEPS)
        image = self._linear(ops.stop_gradient(leading), dense)
        return ops.sum(image * ops.stop_gradient(_unit(image)))

    def _leading_input(self, kernel: Any, start: Any, num_steps: int) -> Any:
        """Returns an input of length one whose image is almost as long as possible.

        Builds an orthonormal basis of products with A^T A, in which A^T A is a small
        tridiagonal matrix, and returns its leading eigenvector (Lanczos).
        """
        largest = ops.max(ops.abs(kernel))
        kernel = kernel / ops.where(largest > 0, largest, 1)  # Its powers stay finite.
        vector = _unit(start)
        basis: list[Any] = []
        alphas: list[Any] = []
        betas: list[Any] = []
        for _ in range(num_steps):
            image = self._adjoint(self._linear(vector, kernel), kernel)
            if basis:
                image = image - betas[-1] * basis[-1]
            alphas.append(ops.sum(image * vector))
            image = image - alphas[-1] * vector
            betas.append(ops.sqrt(ops.sum(ops.square(image))))
            basis.append(vector)
            vector = _unit(image)
        sides, diagonals = range(num_steps), {0: alphas, 1: betas}
        zeros = [ops.zeros_like(alphas[0])] * num_steps
        matrix = ops.stack(
            [
                ops.stack([diagonals.get(abs(i - j), zeros)[min(i, j)] for j in sides])
                for i in sides
            ]
        )
        for _ in range(_SQUARINGS):
            matrix = matrix / _frobenius(matrix)
            matrix = ops.matmul(matrix, matrix)
        # All columns are multiples of the leading eigenvector.
        entries = ops.unstack(matrix[:, 0])
        pairs = zip(entries, basis, strict=True)
        return _unit(sum(entry * one for entry, one in pairs))

    def normalized_kernel(self, training: bool = False) -> Any:
        """Computes the kernel that the layer applies.

        Args:
            training: Boolean. Whether this is a training step, in which the estimate
                continues from the previous step.

        Returns:
            Tensor with the shape of the kernel in the compute dtype.

        Raises:
            ValueError: If the layer has not been built.
        """
        kernel = self._wide_kernel()
        # The quotient is exactly one if the norm is below `max_norm`.
        scale = self.max_norm / ops.maximum(self._norm(kernel, training), self.max_norm)
        return ops.cast(kernel * scale, self.compute_dtype)

    def get_config(self) -> Config:
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

    In a training step, a few steps of the Lanczos method estimate sigma. The norm can
    exceed `max_norm` by a few percent while the kernel changes.

    At inference, and for `kernel`, an upper bound takes the place of sigma, which is at
    most 1.4 % larger for up to 1,024 units. The norm is thus at most `max_norm`, for
    all weights. The bound costs 8 products of square matrices for each call or, in a
    cell, for each solve. Unlike `keras.layers.SpectralNormalization`, the layer never
    scales kernels up.

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
        training: Boolean. Whether a call without `kernel` is a training step.

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

    def _prepare_normalization(self, input_shape: Any) -> None:
        random = np.random.default_rng(0)
        self._create_start(random.normal(size=(1, input_shape[-1])))

    def _linear(self, inputs: Any, kernel: Any) -> Any:
        return ops.matmul(inputs, kernel)

    def _adjoint(self, outputs: Any, kernel: Any) -> Any:
        return ops.matmul(outputs, ops.transpose(kernel))

    def _norm(self, kernel: Any, training: bool) -> Any:
        if training:
            return super()._norm(kernel, training)
        norm = self._estimate(kernel)
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

    Twelve steps of the Lanczos method estimate sigma from the present kernel, and the
    estimate is raised by 3 %. It was at most 2.2 % too small for 680 kernels, but it is
    no proof: `SpectrallyNormalizedDense` has a bound, and
    `deq_keras.diagnostics.certify` computes one for an `ImageDenoiser`. The estimate
    costs 25 convolutions of one map for each call or, in a cell, for each solve. LiteRT
    and ONNX files contain the normalized kernel.

    A training step continues from the map that the previous one found, with four steps
    instead of twelve, which cost 9 convolutions. The norm can exceed `max_norm` by a
    few percent while the kernel changes. If it has changed by more than 20 %, as after
    loading or assigning a kernel, all twelve steps are made.

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

    def _prepare_normalization(self, input_shape: Any) -> None:
        shape = tuple(input_shape[1:])
        if None in shape:
            raise ValueError(
                f"Layer '{self.name}' bounds the norm of a map of one size. Build it "
                "with a static height and width, for example keras.Input((32, 32, 3)). "
                f"Received: inputs of shape {tuple(input_shape)}."
            )
        axes = {axis: size for axis, size in enumerate(shape, start=1)}
        self.input_spec = keras.InputSpec(ndim=len(input_shape), axes=axes)
        if self.data_format == "channels_first":
            shape = (*shape[1:], shape[0])
        self._create_start(_first_map(shape))

    def _linear(self, inputs: Any, kernel: Any) -> Any:
        return tf.nn.conv2d(inputs, kernel, self.strides, self.padding.upper())

    def _adjoint(self, outputs: Any, kernel: Any) -> Any:
        return tf.nn.conv2d_transpose(
            outputs, kernel, self._start.shape, self.strides, self.padding.upper()
        )

    def _dense_kernel(self, kernel: Any) -> Any:
        """Returns the kernel of the same map without groups and dilation."""
        rows, columns, depth, filters = kernel.shape
        group = np.arange(depth * self.groups)[:, None] // depth
        mask = group == np.arange(filters) // (filters // self.groups)
        kernel = ops.tile(kernel, (1, 1, self.groups, 1)) * ops.cast(mask, kernel.dtype)
        channels, (down, right) = depth * self.groups, self.dilation_rate
        kernel = ops.reshape(kernel, (rows, 1, columns, 1, channels, filters))
        kernel = ops.pad(
            kernel, ((0, 0), (0, down - 1), (0, 0), (0, right - 1), (0, 0), (0, 0))
        )
        kernel = ops.reshape(kernel, (rows * down, columns * right, channels, filters))
        return kernel[: (rows - 1) * down + 1, : (columns - 1) * right + 1]


def _first_map(shape: tuple[int, ...]) -> Any:
    """Returns a map to start from: noise and a smooth bump.

    Noise has a part of every map. The norm of smooth kernels, such as a blur, is at
    smooth maps, which are a small part of noise. The bump is smaller, so that they
    cannot cancel each other on a map of one pixel.

    Args:
        shape: Tuple `(height, width, channels)`.

    Returns:
        Array `(1, height, width, channels)`.
    """
    random = np.random.default_rng(0)
    noise = random.normal(size=shape)
    sides = [np.sin(np.pi * np.arange(1, n + 1) / (n + 1)) for n in shape[:2]]
    bump = np.outer(*sides)[..., None] * random.normal(size=shape[2])
    return (noise / np.linalg.norm(noise) + 0.8 * bump / np.linalg.norm(bump))[None]


def _unit(vector: Any) -> Any:
    """Scales a vector to length one; returns zeros if the length is 0 or NaN."""
    length = ops.sqrt(ops.sum(ops.square(vector)))
    has_length = length > 0
    return ops.where(has_length, vector / ops.where(has_length, length, 1), 0.0)


def spectral_norm_bound(matrix: Any, num_steps: int = 12) -> Any:
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


def _frobenius(matrix: Any) -> Any:
    smallest = 1e-30 if matrix.dtype == "float32" else 1e-250
    squares = ops.sum(ops.square(matrix), axis=(-2, -1), keepdims=True)
    return ops.maximum(ops.sqrt(squares), smallest)
