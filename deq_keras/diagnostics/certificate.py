"""Certificates: the distance of a state to an equilibrium, and its uniqueness."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_integer
from deq_keras.core.linearization import Linearization, matrix_vjp
from deq_keras.core.problem import in_dtype
from deq_keras.core.random import normal
from deq_keras.core.structure import Nest, StateStructure, row_norms, squared_norm
from deq_keras.diagnostics.spectral_radius import EPSILON
from deq_keras.diagnostics.subject import layer_inputs, single_layer
from deq_keras.solvers import CONVERGED, GMRES, FixedPointProblem, SolveRequest

# States of up to this size have a dense Jacobian, whose decomposition is rigorous. For
# 256 numbers, it takes 0.5 MB a sample.
_DENSE = 256
# Number of points where the Jacobian is compared, of power iterations for a norm, and
# of iterations for the norm of an inverse, with two linear solves each.
_NUM_PROBES = 4
_NUM_ITERATIONS = 6
_NUM_INVERSE_ITERATIONS = 3

# Function of a `(batch, features)` matrix that multiplies each row by a matrix.
Product: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class Certificate(NamedTuple):
    """The result of `certify`, per sample.

    Norms are Euclidean norms of one sample's whole state. All statements hold up to the
    rounding of f, which in half precision often exceeds the radius.

    Attributes:
        radius: Float tensor `(batch,)`. There is an equilibrium within this distance of
            the state. Infinite without a certificate.
        unique_radius: Float tensor `(batch,)`. At most one equilibrium is within this
            distance of the state. Infinite if it is the only one of f; zero without a
            certificate.
        kind: String tensor `(batch,)`. `"certified"`: all bounds are rigorous.
            `"estimated"`: a norm was estimated, and the radius may be too small.
            `"none"`: no bound applies. `"contradicted"`: f exceeds a constant that its
            cell declares, so the declaration is wrong, and no radius holds.
    """

    radius: tf.Tensor
    unique_radius: tf.Tensor
    kind: tf.Tensor

    @property
    def exists(self) -> tf.Tensor:
        """Whether an equilibrium is within `radius`, Boolean `(batch,)`."""
        return tf.math.is_finite(self.radius)

    @property
    def unique(self) -> tf.Tensor:
        """Whether it is the only equilibrium of f, Boolean `(batch,)`."""
        return self.exists & tf.math.is_inf(self.unique_radius)


def certify(
    subject: Any,
    inputs: Nest | None = None,
    state: Nest | None = None,
    seed: int = 0,
) -> Certificate:
    """Bounds how far a state is from an equilibrium, for every sample.

    It takes the smallest rigorous bound, or else an estimate:

    * Banach's theorem, for a cell with a `lipschitz_constant` L below 1, and the bound
      of a monotone cell; see `FixedPointProblem.distance_bound`. The equilibrium is
      unique.
    * The Newton-Kantorovich theorem, for a smooth f, which need not contract. With
      J = df/dz at the state z, g = f(z) - z and a Lipschitz constant K of df/dz,

          beta = |(I - J)^-1|,    eta = |(I - J)^-1 g|,    h = beta K eta

      If h <= 1/2, an equilibrium is within 2 eta / (1 + sqrt(1 - 2 h)), and no second
      one within (1 + sqrt(1 - 2 h)) / (beta K).

    K is rigorous if the cell declares a `jacobian_lipschitz_constant`. Otherwise the
    change of df/dz at a few points near the state is a lower estimate of it. beta is
    rigorous for states of up to 256 numbers, from a singular value decomposition with
    an allowance for rounding, and for L below 1. Otherwise inverse iteration with
    `GMRES` yields a lower estimate. A kink, as in ReLU, makes an estimate meaningless
    if a unit crosses the kink within the radius.

    Declared constants are compared with the norm of df/dz, in the direction of the
    residual first, and with its change. The comparison can only refute them.

    A certificate of a solve that stopped far from an equilibrium is often `"none"`:
    lower the tolerance. The theorem of Newton and Kantorovich costs about as many
    products with J as the state has numbers, or, for large states, seven linear
    solves; call `certify` in a `tf.function` to repeat it. Samples must not depend on
    each other. String tensors do not run under XLA.

    Args:
        subject: A `DEQ` layer; a functional or sequential model with one; or a
            `FixedPointProblem`, such as `layer.problem(inputs)`.
        inputs: Inputs of the layer or model. Defaults to `None`, for a
            `FixedPointProblem`.
        state: Nest of tensors `(batch, ...)` to certify. Required for a
            `FixedPointProblem`. Defaults to `None`, the value of the layer's solve.
        seed: Integer. Seed of the probes. Defaults to `0`.

    Returns:
        A `Certificate`.

    Raises:
        ValueError: If `subject`, `inputs` and `state` do not fit, or a model does not
            have exactly one `DEQ` layer.

    Example:

    >>> recurrent = deq_keras.layers.SpectrallyNormalizedDense(
    ...     8, max_norm=0.5, activation="tanh")
    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.cell_from(recurrent))
    >>> certificate = deq_keras.diagnostics.certify(layer, np.ones((2, 3), "float32"))
    >>> certificate.kind.numpy()
    array([b'certified', b'certified'], dtype=object)
    >>> bool(np.all(certificate.unique)), bool(np.all(certificate.radius < 0.01))
    (True, True)

    Reference:

    - Kantorovich (1948), "Functional analysis and applied mathematics".
    - Ortega (1968), "The Newton-Kantorovich theorem".
    """
    seed = check_integer("seed", seed)
    problem, state = _problem_and_state(subject, inputs, state)
    bound = problem.distance_bound(state)
    if bound is not None and problem.lipschitz_constant is None:
        return _of_bound(bound)  # A bound of its own needs no constant.
    point = _Point.of(problem, state, seed)
    local = _newton_kantorovich(point)
    radius = point.declared(bound)
    is_global = tf.math.is_finite(radius)
    # An estimate must not replace a rigorous bound.
    is_used = local.is_rigorous | ~is_global
    radius = tf.where(is_used, tf.minimum(radius, local.radius), radius)
    unique_radius = tf.where(is_global, point.declared(None), local.unique_radius)
    is_refuted = point.exceeds_constant | local.exceeds_constant
    exists = tf.math.is_finite(radius) & ~is_refuted
    if problem.is_usable is not None:
        exists &= problem.is_usable
    kind = tf.where(is_global | local.is_rigorous, "certified", "estimated")
    kind = tf.where(exists, kind, "none")
    return Certificate(
        radius=tf.where(exists, radius, float("inf")),
        unique_radius=tf.where(exists, unique_radius, 0.0),
        kind=tf.where(is_refuted, "contradicted", kind),
    )


def _of_bound(bound: tf.Tensor) -> Certificate:
    exists = tf.math.is_finite(bound)
    return Certificate(
        radius=bound,
        unique_radius=tf.where(exists, tf.constant(float("inf"), bound.dtype), 0.0),
        kind=tf.where(exists, "certified", "none"),
    )


def _problem_and_state(
    subject: Any, inputs: Nest | None, state: Nest | None
) -> tuple[FixedPointProblem, Nest]:
    is_problem = isinstance(subject, FixedPointProblem)
    if is_problem != (inputs is None) or (is_problem and state is None):
        raise ValueError(
            "Pass a DEQ layer or a model and its `inputs`, or a FixedPointProblem and "
            f"a `state`. Received: a subject of type {type(subject).__name__}, "
            f"inputs={inputs!r}, state={state!r}."
        )
    problem = subject
    if not is_problem:
        layer, inputs = single_layer(subject), layer_inputs(subject, inputs)
        problem = layer.problem(inputs)
        if state is None:
            state = layer.solver.solve(problem, layer.request(problem)).value
    return problem, tree.map_structure(tf.convert_to_tensor, state)


class _Point(NamedTuple):
    """A state z with the linearization of f, as matrices `(batch, features)`."""

    problem: FixedPointProblem
    structure: StateStructure
    linearization: Linearization
    matrix: tf.Tensor  # (B, D): z
    residual: tf.Tensor  # (B, D): f(z) - z
    seed: int
    jacobian_norm: tf.Tensor  # (B,): a lower bound of |J|

    @classmethod
    def of(cls, problem: FixedPointProblem, state: Nest, seed: int) -> "_Point":
        structure = StateStructure(state)
        linearization = problem.linearize(structure.template)
        structure.check(linearization.value, "What the function of a problem returns")
        matrix = structure.to_matrix(linearization.point)
        residual = structure.to_matrix(linearization.value) - matrix
        point = cls(
            problem, structure, linearization, matrix, residual, seed, matrix[:, 0]
        )
        start = tf.where(squared_norm(residual) > 0, residual, point.random(0))
        norm = _norm_of(point.product, point.transposed_product, start)
        return point._replace(jacobian_norm=norm)

    @property
    def tolerance(self) -> float:
        """Relative error of a norm that rounding may cause."""
        return math.sqrt(self.epsilon)

    @property
    def epsilon(self) -> float:
        """The machine epsilon of the coarsest leaf."""
        return max(EPSILON[leaf.dtype] for leaf in self.structure.leaves)

    def at(self, matrix: tf.Tensor) -> "_Point":
        """Returns another point, without its norm."""
        state = self.structure.to_state(matrix)
        linearization = self.problem.linearize(state)
        rounded = self.structure.to_matrix(linearization.point)
        return self._replace(linearization=linearization, matrix=rounded)

    def product(self, matrix: tf.Tensor) -> tf.Tensor:
        """Returns J v."""
        vector = self.structure.to_state(matrix)
        return self.structure.to_matrix(self.linearization.jvp(vector))

    def transposed_product(self, matrix: tf.Tensor) -> tf.Tensor:
        """Returns J^T v."""
        return matrix_vjp(self.linearization, self.structure, matrix)

    def random(self, number: int | tf.Tensor) -> tf.Tensor:
        """Returns unit vectors, equal for all samples."""
        shape = tf.shape(self.matrix)
        one = normal(shape[1:], [self.seed, number], dtype=self.matrix.dtype)
        return _unit(tf.ensure_shape(tf.broadcast_to(one, shape), self.matrix.shape))

    def declared(self, constant: Any) -> tf.Tensor:
        """Returns a constant that f declares, `(batch,)`; infinite without one."""
        infinite = tf.fill(tf.shape(self.matrix)[:1], float("inf"))
        infinite = tf.cast(infinite, self.matrix.dtype)
        if constant is None:
            return infinite
        constant = in_dtype(constant, infinite.dtype)
        return tf.where(constant >= 0, constant, infinite)

    @property
    def lipschitz_constant(self) -> tf.Tensor:
        """The constant L of f, `(batch,)`; infinite without one."""
        return self.declared(self.problem.lipschitz_constant)

    @property
    def exceeds_constant(self) -> tf.Tensor:
        """Whether |J v| > L |v| for a vector v, Boolean `(batch,)`."""
        return self.jacobian_norm > self.lipschitz_constant * (1 + self.tolerance)


class _Local(NamedTuple):
    """The Newton-Kantorovich theorem, `(batch,)` each."""

    radius: tf.Tensor
    unique_radius: tf.Tensor
    is_rigorous: tf.Tensor
    exceeds_constant: tf.Tensor


def _newton_kantorovich(point: _Point) -> _Local:
    inverse = _inverse(point)
    step, beta = inverse.step, inverse.norm
    # The bound holds for an inexact Newton step, too.
    error = point.residual - (step - point.product(step))
    eta = row_norms(step) + beta * row_norms(error)
    smallest = point.tolerance * (1 + row_norms(point.matrix))
    reach = tf.where(tf.math.is_finite(eta), tf.maximum(2 * eta, smallest), smallest)
    constant = point.declared(point.problem.jacobian_lipschitz_constant)
    is_declared = tf.math.is_finite(constant)
    change, exceeds = _jacobian_change(point, step, reach, constant)
    slope = beta * tf.where(is_declared, constant, change)
    h = slope * eta
    is_valid = h <= 0.5  # False for NaN.
    root = tf.sqrt(tf.maximum(1 - 2 * h, 0))
    unique_radius = (1 + root) / slope
    # Nothing is known of the Jacobian beyond the points where it was compared.
    unique_radius = tf.where(
        is_declared, unique_radius, tf.minimum(unique_radius, reach)
    )
    return _Local(
        radius=tf.where(is_valid, 2 * eta / (1 + root), float("inf")),
        unique_radius=tf.where(is_valid, unique_radius, 0.0),
        is_rigorous=is_valid & is_declared & inverse.is_rigorous,
        exceeds_constant=exceeds,
    )


def _jacobian_change(
    point: _Point, step: tf.Tensor, reach: tf.Tensor, constant: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the largest |J(y) - J(z)| / |y - z| of a few points y at the distance
    `reach`, `(batch,)`, and whether it exceeds a constant."""

    def compare(
        i: tf.Tensor, largest: tf.Tensor, exceeds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        is_step = (i == 0) & (squared_norm(step) > 0)
        direction = tf.where(is_step, _unit(step), point.random(1 + 2 * i))
        other = point.at(point.matrix + reach[:, None] * direction)
        change = _norm_of(
            _difference(other.product, point.product),
            _difference(other.transposed_product, point.transposed_product),
            point.random(2 + 2 * i),
        )
        distance = row_norms(other.matrix - point.matrix)
        # The products differ by their rounding errors, too.
        allowed = constant * distance * (1 + point.tolerance)
        allowed += point.tolerance * point.jacobian_norm
        largest = tf.maximum(largest, change / distance)
        return i + 1, largest, exceeds | (change > allowed)

    _, largest, exceeds = tf.while_loop(
        lambda i, *_: i < _NUM_PROBES,
        compare,
        (0, tf.zeros_like(reach), tf.zeros_like(reach, tf.bool)),
    )
    return largest, exceeds


class _Inverse(NamedTuple):
    """The matrix (I - J)^-1."""

    step: tf.Tensor  # (B, D): its product with the residual
    norm: tf.Tensor  # (B,)
    is_rigorous: tf.Tensor  # (B,), whether the norm is an upper bound


def _inverse(point: _Point) -> _Inverse:
    size = point.matrix.shape[1]
    is_small = size is not None and size <= _DENSE
    step, norm, is_rigorous = (_dense_inverse if is_small else _krylov_inverse)(point)
    # If f contracts, the Neumann series bounds the norm by 1 / (1 - L).
    contracts = point.lipschitz_constant < 1
    bound = tf.where(contracts, 1 / (1 - point.lipschitz_constant), float("inf"))
    norm = tf.where(is_rigorous | ~contracts, tf.minimum(norm, bound), bound)
    return _Inverse(step, norm, is_rigorous | contracts)


def _dense_inverse(point: _Point) -> _Inverse:
    size, dtype = point.matrix.shape[1], point.matrix.dtype

    def row(i: tf.Tensor) -> tf.Tensor:
        basis = tf.one_hot(i, size, dtype=dtype) + tf.zeros_like(point.matrix)
        return point.transposed_product(basis)

    rows = tf.map_fn(row, tf.range(size), fn_output_signature=dtype)  # (D, B, D)
    identity = tf.eye(size, dtype=tf.float64)
    matrix = identity - tf.cast(tf.transpose(rows, [1, 0, 2]), tf.float64)
    is_finite = tf.reduce_all(tf.math.is_finite(matrix), axis=(1, 2))
    matrix = tf.where(is_finite[:, None, None], matrix, identity)
    # A GPU would factorize the small matrices of a batch one by one.
    with tf.device("CPU:0"):
        values, left, right = tf.linalg.svd(matrix)
    residual = tf.cast(point.residual, tf.float64)
    modes = tf.linalg.matvec(left, residual, transpose_a=True)
    step = tf.linalg.matvec(right, tf.math.divide_no_nan(modes, values))
    # The allowance covers rounding errors of J and of the decomposition.
    smallest = values[:, -1] - size * point.epsilon * values[:, 0]
    is_rigorous = is_finite & (smallest > 0)
    norm = tf.where(is_rigorous, 1 / smallest, float("inf"))
    return _Inverse(tf.cast(step, dtype), tf.cast(norm, dtype), is_rigorous)


def _krylov_inverse(point: _Point) -> _Inverse:
    solver = GMRES(max_iter=100, tol=max(1e-4, point.tolerance))

    def solve(product: Product, constant: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        problem = FixedPointProblem(_Affine(product), constant)
        request = SolveRequest(constant, records_trace=False)
        solution = solver.solve(problem, request)
        return solution.point, solution.status == CONVERGED

    def iterate(
        i: tf.Tensor, vector: tf.Tensor, norm: tf.Tensor, is_solved: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        for product in (point.transposed_product, point.product):
            vector, converged = solve(product, vector)
            is_solved &= converged
            norm = tf.maximum(norm, row_norms(vector))
            vector = _unit(vector)
        return i + 1, vector, norm, is_solved

    step, is_solved = solve(point.product, point.residual)
    *_, norm, is_solved = tf.while_loop(
        lambda i, *_: i < _NUM_INVERSE_ITERATIONS,
        iterate,
        (0, point.random(0), tf.zeros_like(step[:, 0]), is_solved),
    )
    norm = tf.where(is_solved, norm, float("inf"))
    return _Inverse(step, norm, tf.zeros_like(is_solved))


class _Affine:
    """The function v -> product(v) + c of a linear problem."""

    def __init__(self, product: Product) -> None:
        self.product = product

    def __call__(self, vector: tf.Tensor, constant: tf.Tensor) -> tf.Tensor:
        return self.product(vector) + constant

    def constant_term(self, constant: tf.Tensor) -> tf.Tensor:
        """Returns c. It marks the function as affine."""
        return constant


def _difference(product: Product, other: Product) -> Product:
    return lambda vector: product(vector) - other(vector)


def _norm_of(product: Product, transposed: Product, start: tf.Tensor) -> tf.Tensor:
    """Returns a lower bound of a spectral norm, by power iteration, `(batch,)`."""

    def iterate(
        i: tf.Tensor, vector: tf.Tensor, largest: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        image = product(vector)
        largest = tf.maximum(largest, row_norms(image))
        return i + 1, _unit(transposed(image)), largest

    _, _, largest = tf.while_loop(
        lambda i, *_: i < _NUM_ITERATIONS,
        iterate,
        (0, _unit(start), tf.zeros_like(start[:, 0])),
    )
    return largest


def _unit(matrix: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(matrix, row_norms(matrix)[:, None])
