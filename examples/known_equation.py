"""Learn the unknown part r of the equation -u'' + r(u) = s, and solve finer grids."""

import keras
import numpy as np
from keras import ops

import deq_keras


def inverse(points, shift=10.0):
    """Returns (shift - d2/dx2)^-1 on a grid between two ends of value zero."""
    spacing, modes = 1 / (points + 1), np.arange(1, points + 1)
    basis = np.sqrt(2 * spacing) * np.sin(np.pi * spacing * np.outer(modes, modes))
    values = (2 * np.sin(np.pi * spacing * modes / 2) / spacing) ** 2
    return ((basis / (shift + values)) @ basis).astype("float32")


class ReactionCell(deq_keras.layers.EquilibriumCell):
    """f(u, s) = (10 - d2/dx2)^-1 (s - r(u) + 10 u), r(u) = sum of w_k tanh(k u)"""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.w = self.add_weight((6,), "zeros", name="w")

    def inject(self, sources, training=False):
        solve = ops.convert_to_tensor(inverse(sources.shape[1]))
        return {"sources": sources, "w": self.w, "solve": solve}

    def initial_state(self, injection):
        return ops.zeros_like(injection["sources"])

    def call(self, u, injection):
        terms = ops.tanh(u[..., None] * ops.arange(1.0, 7.0))
        reaction = ops.sum(terms * injection["w"], axis=-1)
        right = 10.0 * u + injection["sources"] - reaction
        return right @ injection["solve"]


def steady_states(sources, steps=400):
    """The truth, r(u) = 4 u / (1 + u^2), by plain steps in NumPy."""
    u, solve = np.zeros_like(sources), inverse(sources.shape[1])
    for _ in range(steps):
        u = (sources - 4 * u / (1 + u**2) + 10.0 * u) @ solve
    return u


keras.utils.set_random_seed(0)
scales = np.random.default_rng(0).normal(0, 20, (256, 1)).astype("float32")
coarse, fine = (scales * np.ones((1, points), "float32") for points in (15, 63))
adjoint = deq_keras.gradients.ImplicitGradient(deq_keras.solvers.GMRES(tol=1e-4))
deq = deq_keras.DEQ(
    ReactionCell(), deq_keras.solvers.Anderson(60, 1e-5), adjoint, regularizer=None
)
model = keras.Sequential([keras.Input((15,)), deq])
model.compile(keras.optimizers.Adam(0.1), "mse")
model.fit(coarse[:200], steady_states(coarse[:200]), epochs=30, verbose=0)
for grid in (coarse[200:], fine[200:]):
    error = np.abs(deq.solve(grid).value - steady_states(grid)).max()
    print(grid.shape[1], "points: largest error", error)
