"""The steady state of a reaction and diffusion, whose reaction is learned."""

import keras
import numpy as np
from keras import ops

import deq_keras

from .task import Task

_NUM_MODES = 32  # Number of sines in each direction.
_SHIFT = 100.0  # Half of the largest slope of the true reaction.


def true_reaction(u):
    """The consumption of a substance by enzymes (Michaelis and Menten)."""
    return 40 * u / (0.2 + np.abs(u))


@keras.saving.register_keras_serializable(package="deq_keras_training")
class ReactionDiffusionCell(deq_keras.layers.EquilibriumCell):
    """Solves `-d laplace(u) + r(u) = s` on a square, with u = 0 at its boundary.

        f(u, s) = (c - d laplace)^-1 (s - r(u) + c u),   r(u) = sum_i a_i tanh(b_i u)

    The five-point Laplacian is inverted in its sine basis, so that the number of
    evaluations does not grow with the grid. Positive a and b keep the slope of r
    between 0 and `2 c = sum_i a_i b_i`: f contracts on every grid. Inputs are sources
    `(n, n, 1)` at the inner points of a grid of any n.

    Args:
        units: Positive integer. Number of terms of r.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(self, units=16, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        def logarithms(low, high, name):
            values = np.log(np.geomspace(low, high, self.units))
            initializer = keras.initializers.Constant(values)
            return self.add_weight((self.units,), initializer, name=name)

        self.log_a = logarithms(1.0, 1.0, "log_a")
        self.log_b = logarithms(0.5, 10.0, "log_b")
        self.log_diffusivity = self.add_weight((), "zeros", name="log_diffusivity")

    def inject(self, sources, training=False):
        if not self.built:
            self.build(sources.shape)
        n = ops.shape(sources)[1]
        modes = ops.arange(1, n + 1, dtype=self.compute_dtype)
        spacing = 1 / ops.cast(n + 1, self.compute_dtype)
        angles = np.pi * spacing * modes
        eigenvalues = (2 * ops.sin(angles / 2) / spacing) ** 2
        eigenvalues = eigenvalues[:, None] + eigenvalues
        a, b = ops.exp(self.log_a), ops.exp(self.log_b)
        shift = ops.sum(a * b) / 2
        return {
            "sources": sources[..., 0],
            "basis": ops.sqrt(2 * spacing) * ops.sin(angles[:, None] * modes),
            "inverse": 1 / (shift + ops.exp(self.log_diffusivity) * eigenvalues),
            "reaction": (a, b, shift),
        }

    def initial_state(self, injection):
        return ops.zeros_like(injection["sources"])

    def call(self, state, injection):
        a, b, shift = injection["reaction"]
        reaction = ops.sum(a * ops.tanh(b * state[..., None]), axis=-1)
        right = injection["sources"] - reaction + shift * state
        basis = injection["basis"]  # Symmetric and orthogonal.
        modes = injection["inverse"] * (basis @ right @ basis)
        return basis @ modes @ basis

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def draw(num_train, seed):
    """Draws smooth sources; the solutions are series of sines, not of a grid."""
    random = np.random.default_rng(seed)
    count, modes = num_train + 32, np.arange(1, _NUM_MODES + 1)
    sources = np.zeros((count, _NUM_MODES, _NUM_MODES))
    sources[:, :4, :4] = 30 * random.normal(size=(count, 4, 4))
    inverse = 1 / (_SHIFT + np.pi**2 * (modes[:, None] ** 2 + modes**2))
    basis = _sines(_NUM_MODES)
    to_modes = 4 * inverse / (_NUM_MODES + 1) ** 2
    u = np.zeros_like(sources)
    for _ in range(80):
        right = _SHIFT * u - true_reaction(u) + basis @ sources @ basis.T
        coefficients = to_modes * (basis.T @ right @ basis)
        u = basis @ coefficients @ basis.T

    def on_grid(n, rows):
        pair = (_sines(n) @ one[rows] @ _sines(n).T for one in (sources, coefficients))
        inputs, targets = (array.astype("float32") for array in pair)
        return inputs[..., None], targets

    test = slice(num_train, None)
    sizes = {f"{n} x {n}": on_grid(n, test) for n in (16, 32, 64)}
    return on_grid(16, slice(num_train)), sizes


def _sines(n):
    """Returns sin(pi k x) at the inner points of a grid, `(n, modes)`."""
    points = np.arange(1, n + 1)[:, None] / (n + 1)
    return np.sin(np.pi * points * np.arange(1, _NUM_MODES + 1))


def residual_network(inputs, filters=32, num_blocks=4):
    def convolution(activation=None):
        return keras.layers.Conv2D(filters, 3, padding="same", activation=activation)

    features = convolution()(keras.layers.Rescaling(0.02)(inputs))
    for _ in range(num_blocks):
        change = convolution()(convolution("relu")(features))
        features = keras.layers.ReLU()(features + change)
    return keras.layers.Conv2D(1, 3, padding="same")(features)[..., 0]


REACTION_DIFFUSION = Task(
    draw, (None, None, 1), ReactionDiffusionCell, residual_network
)
