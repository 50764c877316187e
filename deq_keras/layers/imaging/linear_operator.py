"""The base of linear operators, which map an image to its measurements."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops, tree

from deq_keras.core.checks import check_counts
from deq_keras.core.internals import flatten_layers
from deq_keras.core.linearization import linearize
from deq_keras.core.rounding import EPSILON
from deq_keras.core.structure import wide_dtype

# A power iteration estimates the norm from below. After 100 iterations from a random
# image of n pixels, the expected relative error is at most 0.87 log(n) / 198 (Kuczynski
# and Wozniakowski, 1992): 5 % for 256 x 256 pixels.
_NUM_ITERATIONS = 100
_SAFETY = 1.05

# Largest deviation of an adjoint, relative to the norms of what is multiplied, or the
# epsilon of the compute dtype if that is larger. Wrong adjoints deviate by the size of
# the result, rounding to TensorFloat-32 by 5e-4.
_TOLERANCE = 1e-3

_METHODS = ("call", "adjoint", "normal", "inverse", "apply_inverse")


def _of_floats(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method of an operator: it receives floating-point tensors."""

    @functools.wraps(method)
    def compute(self: "LinearOperator", *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree.map_structure(self._as_floats, (args, kwargs))
        return method(self, *args, **kwargs)

    return compute


class LinearOperator(keras.layers.Layer):
    """Base class of linear operators A: an image z is measured as y = A z + noise.

    Subclasses implement `call`, which computes A z. All other methods have defaults
    that follow from it. Override them where something faster is known.

    An operator computes in the dtype of the tensor that it receives, or in its compute
    dtype if these are integers, and is the same for all samples. Real and imaginary
    parts of complex numbers are two channels. Channels are the last axis, whatever
    `keras.config.image_data_format()` is. An operator with weights, such as a blur that
    is learned, has a norm that changes with them: override `norm_bound` if the weights
    yield it.

    Args:
        image_shape: Tuple of positive integers, `(height, width, channels)`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, ...)`, the measurements.

    Raises:
        ValueError: If `image_shape` is invalid, or images have another shape.

    Example:

    >>> class Differences(deq_keras.layers.LinearOperator):
    ...     def call(self, images):
    ...         return images[:, 1:] - images[:, :-1]
    >>> operator = Differences((8, 8, 1))
    >>> operator.measurement_shape
    (7, 8, 1)
    >>> operator.check_adjoint()
    >>> tuple(operator.adjoint(np.ones((2, 7, 8, 1), "float32")).shape)
    (2, 8, 8, 1)
    >>> 1.96 < operator.norm < 2.1  # The exact norm is 1.96.
    True
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _METHODS:
            if name in vars(cls):
                setattr(cls, name, _of_floats(vars(cls)[name]))

    def __init__(self, image_shape: tuple[int, int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.image_shape = check_counts("image_shape", image_shape)
        if len(self.image_shape) != 3:
            raise ValueError(
                "`image_shape` must be (height, width, channels). "
                f"Received: image_shape={image_shape!r}."
            )
        self._norm: float | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        # FITS files and some DICOM files are big-endian. A constant of a graph would
        # have their bytes in the wrong order, without an error (TensorFlow 2.21).
        if isinstance(value, np.ndarray) and not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        super().__setattr__(name, value)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.check_shape("images", input_shape, self.image_shape)
        self.input_spec = keras.InputSpec(shape=(None, *self.image_shape))

    def _as_floats(self, value: Any) -> Any:
        """Returns a tensor in floating-point, and anything else as it is."""
        dtype = getattr(value, "dtype", None)
        if dtype is None:
            return value
        dtype = keras.backend.standardize_dtype(dtype)
        check_real(dtype)
        # In the dtype of integer images, the tables of an operator would be zeros.
        return value if "float" in dtype else ops.cast(value, self.compute_dtype)

    def _build_once(self) -> None:
        """Creates the weights, unless they exist. Keras does so only in `__call__`."""
        if self.built:
            return
        shape = None, *self.image_shape
        self.build(shape)
        if flatten_layers(self, include_self=False):  # A call builds them.
            keras.Operation.compute_output_spec(self, keras.KerasTensor(shape))

    def call(self, images: Any) -> Any:
        """Returns A z of images z."""
        raise NotImplementedError(f"{type(self).__name__} must implement `call`.")

    @_of_floats
    def adjoint(self, measurements: Any) -> Any:
        """Returns A^T y, by default the vector-Jacobian product of `call`.

        Args:
            measurements: Tensor `(batch, ...)` like the result of `call`.

        Returns:
            Tensor `(batch, height, width, channels)`.
        """
        self._build_once()
        shape = (ops.shape(measurements)[0], *self.image_shape)
        zeros = ops.zeros(shape, measurements.dtype)
        return linearize(self.call, zeros).vjp(measurements)

    @_of_floats
    def normal(self, images: Any) -> Any:
        """Returns A^T A z, by default `adjoint(call(z))`.

        Args:
            images: Tensor `(batch, height, width, channels)`.
        """
        self._build_once()
        return self.adjoint(self.call(images))

    @_of_floats
    def inverse(self, images: Any, mu: Any) -> Any:
        """Returns (A^T A + mu)^-1 z, for operators where it is cheap.

        Args:
            images: Tensor `(batch, height, width, channels)`.
            mu: Positive float or scalar tensor.

        Raises:
            ValueError: If the inverse is not cheap.
        """
        raise ValueError(
            f"{type(self).__name__} has no inverse of A^T A + mu in closed form. Use "
            "`ProximalGradientCell`, or implement `inverse(images, mu)`. "
            f"Received: operator={self.name!r}."
        )

    def inverse_factor(self, mu: Any) -> Any:
        """Returns what `apply_inverse` needs besides an image, by default mu.

        A cell computes it once per solve. Override both methods if `inverse` computes
        something that does not depend on the image.

        Args:
            mu: Positive scalar tensor.
        """
        return mu

    @_of_floats
    def apply_inverse(self, images: Any, factor: Any) -> Any:
        """Returns (A^T A + mu)^-1 z, like `inverse`.

        Args:
            images: Tensor `(batch, height, width, channels)`.
            factor: Result of `inverse_factor(mu)`.
        """
        return self.inverse(images, factor)

    def norm_bound(self) -> Any:
        """Returns an upper bound of the norm of A that its structure yields.

        Returns:
            Float, or `None` if no bound is known, the default. If A has weights, a
            scalar tensor that `keras.ops` computes from them.
        """
        return None

    @property
    def norm(self) -> Any:
        """The norm of A, its largest singular value.

        It is `norm_bound()` if that is known, else 1.05 times the estimate of 100 power
        iterations on one image. An operator without weights computes it once, a float.
        An operator with weights computes a scalar tensor of the present weights each
        time; a cell does so once per solve.
        """
        self._build_once()
        if self._norm is not None:
            return self._norm
        norm = self.norm_bound()
        if self.weights:
            return self._estimate_norm() if norm is None else norm
        if norm is None:
            norm = float(_eager(self._estimate_norm)())
            if not 0 < norm < math.inf:
                raise ValueError(
                    f"The norm of {type(self).__name__} must be positive and finite, "
                    "but `normal` returned zeros or non-finite numbers for random "
                    f"images. Received: norm={norm}."
                )
        self._norm = norm
        return norm

    @property
    def measurement_shape(self) -> tuple[int, ...]:
        """The shape of the measurements of one image."""
        self._build_once()
        images = keras.KerasTensor((None, *self.image_shape))
        return keras.Operation.compute_output_spec(self, images).shape[1:]

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> Any:
        self.check_shape("images", input_shape, self.image_shape)
        return (input_shape[0], *self.measurement_shape)

    def check_adjoint(self) -> None:
        """Compares <A z, y> with <z, A^T y> for random z, with y random and y = A z.

        Raises:
            ValueError: If `adjoint` or `normal` contradicts `call`.
        """
        self._build_once()
        random, name = np.random.default_rng(0), type(self).__name__
        tolerance = max(_TOLERANCE, EPSILON[tf.as_dtype(self.compute_dtype)])
        images = self._draw(random, self.image_shape)
        measured = _eager(self.call)(images)
        noise = self._draw(random, measured.shape[1:])
        message = (
            f"`{name}.adjoint` is not the adjoint of `call`: <A z, y> and <z, A^T y> "
            "differ. Correct `adjoint`, or delete it: by default, it is derived from "
            "`call`, which must be linear, without an offset."
        )
        if type(self).adjoint is LinearOperator.adjoint:
            message = (
                f"The gradient of `{name}.call` is not its adjoint: <A z, y> and <z, "
                "A^T y> differ. `call` must be linear, without an offset. TensorFlow "
                "2.21 differentiates rotations and changes of size by "
                "`keras.ops.image.affine_transform` only approximately: use "
                "`keras.ops.image.map_coordinates`, or implement `adjoint`."
            )
        for cotangent in (noise, measured):
            _compare(
                message,
                (measured, cotangent),
                (images, _eager(self.adjoint)(cotangent)),
                tolerance,
            )
        _compare(
            f"`{name}.normal` is not A^T A: <A z, A z> and <z, A^T A z> differ. "
            "Correct `normal`, or delete it: by default, it is `adjoint(call(z))`.",
            (measured, measured),
            (images, _eager(self.normal)(images)),
            tolerance,
        )

    def _estimate_norm(self) -> Any:
        # A fixed start finds the norm of any weights, also after loading. The image of
        # earlier weights can be orthogonal to the image that has become the largest.
        images = ops.convert_to_tensor(
            self._draw(np.random.default_rng(0), self.image_shape)
        )
        images = ops.fori_loop(
            0, _NUM_ITERATIONS, lambda _, images: _unit(self.normal(images)), images
        )
        measured = self.call(ops.stop_gradient(images))
        # |A z| for constant z has the gradient of the norm for weights.
        return _SAFETY * ops.sum(measured * ops.stop_gradient(_unit(measured)))

    def _draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Any:
        # Cells apply operators in float32 or better.
        dtype = wide_dtype(self.variable_dtype)
        return random.normal(size=(1, *shape)).astype(dtype)

    @staticmethod
    def check_shape(
        name: str, shape: tuple[int | None, ...], expected: tuple[int, ...]
    ) -> None:
        """Raises `ValueError` unless a batch of tensors has the expected shape.

        Args:
            name: String. Name of the tensors, for the message.
            shape: Tuple. Shape of the batch.
            expected: Tuple of integers. Shape of each sample.
        """
        if tuple(shape[1:]) != tuple(expected):
            raise ValueError(
                f"The operator expects {name} of shape {(None, *expected)}. Crop or "
                "resize them, or create an operator for their size. "
                f"Received: {name} of shape {tuple(shape)}."
            )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "image_shape": list(self.image_shape)}


class ProjectionOperator(LinearOperator):
    """Base class of operators for which A^T A is `norm`^2 times a projection.

    Then (A^T A + mu)^-1 = (I - A^T A / (norm^2 + mu)) / mu.
    """

    def inverse(self, images: Any, mu: Any) -> Any:
        return (images - self.normal(images) / (self.norm**2 + mu)) / mu


def check_real(dtype: str) -> None:
    """Raises `ValueError` if images or measurements have a complex dtype."""
    if "complex" in dtype:
        raise ValueError(
            "Images and measurements must be real. Pass real and imaginary part as two "
            f"channels. Received: a tensor of dtype {dtype}."
        )


def check_array(name: str, value: Any, num_axes: int | tuple[int, ...]) -> np.ndarray:
    """Returns a float64 array of finite real numbers.

    Args:
        name: String. Name of the argument, for messages.
        value: Array, nested lists of numbers, or a sparse matrix of SciPy.
        num_axes: Integer, or tuple of integers. Accepted numbers of axes.

    Raises:
        ValueError: If the value is complex, not finite or not such an array.
    """
    array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    accepted = (num_axes,) if isinstance(num_axes, int) else num_axes
    if array.dtype.kind == "c":
        raise ValueError(
            f"`{name}` must be real. Operators represent complex numbers by two "
            f"channels. Received: {name} of dtype {array.dtype}."
        )
    if array.dtype.kind not in "fiub" or array.ndim not in accepted or not array.size:
        raise ValueError(
            f"`{name}` must be an array of numbers with "
            f"{' or '.join(map(str, accepted))} axes. "
            f"Received: {name} of shape {array.shape} and dtype {array.dtype}."
        )
    if not np.all(np.isfinite(array)):
        raise ValueError(f"`{name}` must be finite. Received: {name}={value!r}.")
    return array.astype("float64")


def check_mask(name: str, value: Any, num_axes: int | tuple[int, ...]) -> np.ndarray:
    """Returns a float64 array of zeros and ones with at least one 1; see
    `check_array`."""
    mask = check_array(name, value, num_axes)
    if not np.all((mask == 0) | (mask == 1)) or not mask.any():
        raise ValueError(
            f"`{name}` must be 1 where there is a measurement, at one place or more, "
            f"and 0 elsewhere. Received: {name} with values from {mask.min()} to "
            f"{mask.max()}."
        )
    return mask


def _unit(images: Any) -> Any:
    """Scales images to a norm of one; zeros remain zeros."""
    length = ops.sqrt(ops.sum(ops.square(images)))
    return images / ops.where(length == 0, 1, length)


def _eager(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Returns a function of arrays that runs at once, also while a graph is traced."""
    # `tf.init_scope` leaves the graph, but gradient tapes record nothing in it. Without
    # `partial`, TensorFlow would count the traces of all operators as retracing of one
    # function, and warn.
    compiled = tf.function(functools.partial(function), autograph=False)

    def evaluate(*arrays: Any) -> np.ndarray:
        with tf.init_scope():
            return ops.convert_to_numpy(compiled(*arrays))

    return evaluate


def _compare(
    advice: str, first: tuple[Any, Any], second: tuple[Any, Any], tolerance: float
) -> None:
    """Raises `ValueError` unless two inner products agree."""
    products, sizes = [], []
    for pair in (first, second):
        one, two = (np.asarray(x, "float64").ravel() for x in pair)
        products.append(float(one @ two) if one.size == two.size else math.nan)
        sizes.append(float(np.linalg.norm(one) * np.linalg.norm(two)))
    if not abs(products[0] - products[1]) <= tolerance * max(sizes):
        raise ValueError(f"{advice} Received: {products[0]:g} and {products[1]:g}.")
