"""Certificates: the distance of a state to the only equilibrium."""

import math
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_integer
from deq_keras.core.internals import flatten_layers
from deq_keras.core.linearization import matrix_vjp
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.random import normal
from deq_keras.core.rounding import has_tensor_float_32, product_epsilon
from deq_keras.core.structure import Nest, StateStructure, row_norms, squared_norm
from deq_keras.diagnostics.subject import encoder, single_layer

# Power iterations for the norm of df/dz.
_NUM_ITERATIONS = 6


class Certificate(NamedTuple):
    """The result of `certify`, per sample.

    Norms are Euclidean norms of one sample's whole state. All statements hold up to the
    rounding of f.

    Attributes:
        radius: Float tensor `(batch,)`. The only equilibrium is within this distance of
            the state. Infinite without a certificate.
        kind: String tensor `(batch,)`. `"certified"`: the bound is rigorous.
            `"estimated"`: f computes in half precision, in quantized numbers or in
            TensorFloat-32, whose rounding errors often exceed the radius. `"none"`: no
            bound applies. `"contradicted"`: f exceeds a constant that its cell
            declares, so the declaration is wrong, and no radius holds.
    """

    radius: tf.Tensor
    kind: tf.Tensor

    @property
    def unique(self) -> tf.Tensor:
        """Whether f has exactly one equilibrium, Boolean `(batch,)`."""
        return tf.math.is_finite(self.radius)


def certify(
    subject: Any,
    inputs: Nest,
    state: Nest | None = None,
    seed: int = 0,
) -> Certificate:
    """Bounds how far a state is from the only equilibrium, for every sample.

    A cell with a `lipschitz_constant` L below 1 has Banach's bound

        |z - z*| <= |f(z) - z| / (1 - L)

    and a monotone cell its own `distance_bound`. Others lack a bound. Bounds assume
    exact arithmetic: an error e in f(z) adds e / (1 - L).

    In addition, this function compares L with the norm of df/dz at the state, in the
    direction of the residual first. The comparison can only refute L. It costs six
    products with df/dz and its transpose; call `certify` in a `tf.function` to repeat
    it. String tensors do not run under XLA. Samples must not depend on each other.

    Args:
        subject: A `DEQ` layer, or a functional or sequential model with one.
        inputs: Inputs of the layer or model.
        state: Nest of tensors `(batch, ...)` to certify, from any solver. Defaults to
            `None`, the value of the layer's solve.
        seed: Integer. Seed of a vector that replaces a residual of zero. Defaults to
            `0`.

    Returns:
        A `Certificate`.

    Raises:
        ValueError: If a model does not have exactly one `DEQ` layer.

    Example:

    >>> recurrent = deq_keras.layers.SpectrallyNormalizedDense(
    ...     8, max_norm=0.5, activation="tanh")
    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.cell_from(recurrent))
    >>> certificate = deq_keras.diagnostics.certify(layer, np.ones((2, 3), "float32"))
    >>> certificate.kind.numpy()
    array([b'certified', b'certified'], dtype=object)
    >>> bool(np.all(certificate.unique)), bool(np.all(certificate.radius < 0.01))
    (True, True)
    """
    seed = check_integer("seed", seed)
    layer = single_layer(subject)
    problem = layer.problem(encoder(subject)(inputs))
    request = layer.request(problem)
    if state is None:
        state = layer.solver.solve(problem, request).value
    state = tree.map_structure(tf.convert_to_tensor, state)
    StateStructure(request.initial_state).check(state, "`state`")
    structure = StateStructure(state)
    matrix = structure.to_matrix(state)
    infinite = tf.fill(tf.shape(matrix)[:1], tf.constant(float("inf"), matrix.dtype))
    declared: Any = problem.fn
    constant = declared.lipschitz_constant(problem.injection)
    if constant is not None:
        constant = tf.convert_to_tensor(constant, dtype_hint=structure.dtype)
        constant = tf.cast(constant, structure.dtype)
    radius = None
    if problem.mask is None:  # The bound of a monotone cell knows no padding.
        radius = declared.distance_bound(state, problem.injection)
    if radius is None and constant is not None:
        # |z - z*| <= |z - f(z)| + |f(z) - f(z*)| <= |z - f(z)| + L |z - z*|
        distance = row_norms(structure.to_matrix(problem(state)) - matrix)
        contracts = (constant >= 0) & (constant < 1)
        radius = tf.where(contracts, distance / (1 - constant), infinite)
    if radius is None:
        radius = infinite
    is_known = tf.math.is_finite(radius)
    if problem.is_usable is not None:
        is_known &= problem.is_usable
    if constant is None:
        is_refuted = tf.zeros_like(is_known)
    else:
        epsilon = product_epsilon(leaf.dtype for leaf in structure.leaves)
        allowed = constant * (1 + math.sqrt(epsilon))
        # A negative constant is unknown.
        is_refuted = (constant >= 0) & (
            _jacobian_norm(problem, structure, state, seed) > allowed
        )
    # Does the cell or one of its layers round more than float32 does?
    layers = flatten_layers(layer.cell)
    dtypes = {leaf.dtype for leaf in structure.leaves}
    dtypes |= {tf.as_dtype(one.compute_dtype) for one in layers}
    is_coarse = (
        any(dtype.is_floating and dtype.size < 4 for dtype in dtypes)
        or any(one.quantization_mode is not None for one in layers)
        or has_tensor_float_32(dtypes)
    )
    kind = tf.where(is_known, "estimated" if is_coarse else "certified", "none")
    return Certificate(
        radius=tf.where(is_known & ~is_refuted, radius, float("inf")),
        kind=tf.where(is_refuted, "contradicted", kind),
    )


def _jacobian_norm(
    problem: FixedPointProblem, structure: StateStructure, state: Nest, seed: int
) -> tf.Tensor:
    """Returns a lower bound of |df/dz| at a state, by power iteration, `(batch,)`."""
    linearization = problem.linearize(state)
    structure.check(linearization.value, "What the function of a problem returns")
    matrix = structure.to_matrix(state)
    residual = structure.to_matrix(linearization.value) - matrix
    random = normal(tf.shape(matrix)[1:], [seed, 0], dtype=matrix.dtype)
    start = tf.where(squared_norm(residual) > 0, residual, random)

    def iterate(
        i: tf.Tensor, vector: tf.Tensor, largest: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        image = structure.to_matrix(linearization.jvp(structure.to_state(vector)))
        largest = tf.maximum(largest, row_norms(image))
        return i + 1, _unit(matrix_vjp(linearization, structure, image)), largest

    _, _, largest = tf.while_loop(
        lambda i, *_: i < _NUM_ITERATIONS,
        iterate,
        (0, _unit(start), tf.zeros_like(start[:, 0])),
    )
    return largest


def _unit(matrix: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(matrix, row_norms(matrix)[:, None])
