"""A zoo of fixed-point problems z = f(z), and their derivatives by dense algebra."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from deq_keras.gradients import EquilibriumGradient
from deq_keras.solvers import (
    Broyden,
    FixedPointProblem,
    FixedPointSolver,
    SolveRequest,
)

BATCH = 3
FEATURES = 6
INPUTS = 4


class Problem(NamedTuple):
    """A fixed-point problem.

    Attributes:
        function: function from a state to a state.
        initial_state: nest of `(batch, ...)` tensors.
        equilibrium: nest of arrays like the state, or `None` where only the defining
            property f(z) = z can be checked.
    """

    function: Callable
    initial_state: Any
    equilibrium: Any = None


def linear(
    matrix: np.ndarray,
    dtype: str = "float64",
    seed: int = 0,
    batch: int = BATCH,
    start: float = 0.0,
) -> Problem:
    """f(z) = z A^T + b with the same A for every sample; solved by linear algebra.

    The initial state has the standard deviation `start`.
    """
    random = np.random.RandomState(seed)
    bias, first = random.normal(size=(2, batch, len(matrix)))
    kernel, offset = tf.constant(matrix.T, dtype), tf.constant(bias, dtype)
    equilibrium = np.linalg.solve(np.eye(len(matrix)) - matrix, bias.T).T
    return Problem(
        function=lambda z: tf.matmul(z, kernel) + offset,
        initial_state=tf.constant(start * first, dtype),
        equilibrium=equilibrium,
    )


def scalar(dtype: str = "float64") -> Problem:
    """One number; a secant step solves the problem exactly."""
    return linear(np.array([[0.8]]), dtype)


def contraction(dtype: str = "float64") -> Problem:
    """Every solver must converge here: |A| = 0.6."""
    matrix = np.random.RandomState(1).normal(size=(FEATURES, FEATURES))
    return linear(0.6 * matrix / np.linalg.norm(matrix, 2), dtype, start=1.0)


def negative_spectrum(dtype: str = "float64") -> Problem:
    """Eigenvalues between -0.9 and -0.1: undamped iteration oscillates."""
    basis, _ = np.linalg.qr(np.random.RandomState(2).normal(size=(FEATURES,) * 2))
    eigenvalues = np.linspace(-0.9, -0.1, FEATURES)
    return linear(basis @ np.diag(eigenvalues) @ basis.T, dtype)


def complex_spectrum(dtype: str = "float64") -> Problem:
    """Three rotations of radius 0.8: every eigenvalue is one of a complex pair."""
    matrix = np.zeros((FEATURES, FEATURES))
    for i, angle in enumerate((0.4, 1.3, 2.5)):
        cosine, sine = 0.8 * np.cos(angle), 0.8 * np.sin(angle)
        block = [[cosine, -sine], [sine, cosine]]
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
    return linear(matrix, dtype)


def non_normal_matrix(seed: int = 3, size: int = FEATURES) -> np.ndarray:
    """Spectral radius 0.5, but a norm far above 1: residuals grow before they fall."""
    strictly_upper = np.triu(np.random.RandomState(seed).normal(size=(size,) * 2), 1)
    return np.diag(np.linspace(-0.5, 0.5, size)) + 1.5 * strictly_upper


def non_normal(dtype: str = "float64") -> Problem:
    """Converges only after the residual has grown, despite a norm above 1."""
    return linear(non_normal_matrix(), dtype)


def tanh(dtype: str = "float64") -> Problem:
    """The nonlinearity of a recurrent cell; the norm of its kernel is above 1."""
    random = np.random.RandomState(4)
    kernel = tf.constant(random.normal(size=(FEATURES, FEATURES)) * 0.35, dtype)
    bias = tf.constant(random.normal(size=(BATCH, FEATURES)), dtype)
    return Problem(
        function=lambda z: tf.tanh(tf.matmul(z, kernel) + bias),
        initial_state=tf.zeros((BATCH, FEATURES), dtype),
    )


def nest(dtype: str = "float64") -> Problem:
    """A dict of a feature map and a tuple, every leaf dependent on every other."""
    random = np.random.RandomState(5)
    kernel = tf.constant(random.normal(size=(18, 18)) * 0.15, dtype)
    bias = tf.constant(random.normal(size=(BATCH, 18)), dtype)

    def function(state: Any) -> Any:
        flat = [state["map"], *state["rest"]]
        columns = [tf.reshape(leaf, [-1, np.prod(leaf.shape[1:])]) for leaf in flat]
        new = tf.tanh(tf.matmul(tf.concat(columns, 1), kernel) + bias)  # (B, 18)
        return {
            "map": tf.reshape(new[:, :12], [-1, 2, 2, 3]),
            "rest": (new[:, 12:16], tf.reshape(new[:, 16:], [-1, 2, 1])),
        }

    initial_state = {
        "map": tf.constant(random.normal(size=(BATCH, 2, 2, 3)), dtype),
        "rest": (tf.zeros((BATCH, 4), dtype), tf.zeros((BATCH, 2, 1), dtype)),
    }
    return Problem(function, initial_state)


ZOO = {
    problem.__name__: problem
    for problem in (
        scalar,
        contraction,
        negative_spectrum,
        complex_spectrum,
        non_normal,
        tanh,
        nest,
    )
}


def dense_jacobians(function: Callable, point: Any) -> np.ndarray:
    """df/dz of every sample as a dense matrix, `(batch, features, features)`.

    Args:
        function: function from `(batch, features)` to `(batch, features)`, without
            coupling between samples.
        point: `(batch, features)` tensor.
    """
    point = tf.convert_to_tensor(point)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(point)
        value = function(point)
    return tape.batch_jacobian(value, point, experimental_use_pfor=False).numpy()


def dense_adjoint(jacobians: np.ndarray, cotangent: Any) -> np.ndarray:
    """Solves y = J^T y + c for every sample."""
    identity = np.eye(jacobians.shape[-1])
    systems = identity - np.swapaxes(jacobians, 1, 2)
    return np.linalg.solve(systems, np.asarray(cotangent)[..., None])[..., 0]


def relative_error(actual: Any, expected: Any) -> float:
    """The largest deviation over the largest expected magnitude."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    scale = max(np.abs(expected).max(), 1e-300)
    return np.abs(actual - expected).max() / scale


def seed() -> tf.Tensor:
    """Returns the seed of everything that is random."""
    return tf.constant((1, 2))


class GradientCase:
    """z = tanh(z A + x V + b): random, non-normal, nonlinear, with four sources.

    Args:
        dtype: String.
    """

    def __init__(self, dtype: str = "float64") -> None:
        random = np.random.RandomState(7)
        self.kernel = tf.constant(non_normal_matrix(seed=8).T * 0.6, dtype)
        self.bias = tf.constant(random.normal(size=FEATURES) * 0.3, dtype)
        self.projection = tf.constant(random.normal(size=(INPUTS, FEATURES)), dtype)
        self.inputs = tf.constant(random.normal(size=(BATCH, INPUTS)) * 0.5, dtype)
        self.cotangent = tf.constant(random.normal(size=(BATCH, FEATURES)), dtype)
        self.sources = (self.kernel, self.bias, self.projection, self.inputs)

    @staticmethod
    def apply(state: Any, injection: Any, kernel: Any, bias: Any) -> tf.Tensor:
        return tf.tanh(tf.matmul(state, kernel) + injection + bias)

    def gradients(
        self,
        gradient: EquilibriumGradient,
        solver: FixedPointSolver,
        sources: Any,
        record_adjoint: Callable | None = None,
    ) -> Any:
        """Returns the gradients of sum(cotangent * z*) for the sources.

        f captures the kernel and the bias.
        """
        kernel, bias, projection, inputs = sources
        with tf.GradientTape() as tape:
            tape.watch(sources)
            equilibrium = gradient.solve(
                FixedPointProblem(
                    lambda state, u: self.apply(state, u, kernel, bias),
                    tf.matmul(inputs, projection),
                ),
                SolveRequest(
                    tf.zeros((BATCH, FEATURES), self.kernel.dtype), seed=seed()
                ),
                solver,
                record_adjoint,
            )
            loss = tf.reduce_sum(equilibrium.value * self.cotangent)
        return tape.gradient(loss, sources)

    def oracle(self) -> Any:
        """Returns the same gradients by a dense solve in float64."""
        sources = [tf.cast(source, tf.float64) for source in self.sources]
        kernel, bias, projection, inputs = sources
        injection = tf.matmul(inputs, projection)

        def function(state: tf.Tensor) -> tf.Tensor:
            return self.apply(state, injection, kernel, bias)

        solution = Broyden(80, 1e-14).solve(
            function, SolveRequest(tf.zeros((BATCH, FEATURES), tf.float64))
        )
        adjoint = dense_adjoint(
            dense_jacobians(function, solution.value), self.cotangent
        )
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = self.apply(
                solution.value, tf.matmul(inputs, projection), kernel, bias
            )
        return tape.gradient(value, sources, output_gradients=tf.constant(adjoint))


def samples(num_samples: int = 4, size: int = 8) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns scales `(samples, 1)` and inputs of problems of different difficulty."""
    random = np.random.RandomState(11)
    scale = tf.constant(np.linspace(0.05, 0.9, num_samples)[:, None], "float32")
    return scale, tf.constant(random.normal(size=(num_samples, size)), "float32")


def function_of_samples(scale: tf.Tensor, inputs: tf.Tensor) -> Callable:
    """Returns f(z) = tanh(scale z A) + inputs, which rounds alike in any batch."""
    size = inputs.shape[1]
    kernel = np.random.RandomState(12).normal(size=(size, size)) * 0.4
    kernel = tf.constant(kernel, inputs.dtype)

    def function(z: tf.Tensor) -> tf.Tensor:
        # A matrix product may round differently for another number of rows.
        product = tf.reduce_sum(z[:, :, None] * kernel[None], axis=1)  # (B, D)
        return tf.tanh(scale * product) + inputs

    return function


def expansion(dtype: str = "float64") -> tuple[tf.Tensor, Callable, tf.Tensor]:
    """Returns a kernel A of norm 1.5, f(z) = tanh(z A + b), and a point."""
    random = np.random.RandomState(9)
    kernel = random.normal(size=(3, 3))
    kernel = tf.constant(1.5 * kernel / np.linalg.norm(kernel, 2), dtype)
    bias = tf.constant(0.1 * random.normal(size=(2, 3)), dtype)
    point = tf.constant(0.1 * random.normal(size=(2, 3)), dtype)
    return kernel, lambda z: tf.tanh(tf.matmul(z, kernel) + bias), point
