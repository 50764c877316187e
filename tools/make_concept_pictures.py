"""Draws fixed points and the paths of solvers, for docs/guides/concepts.md.

    PYTHONPATH=. python tools/make_concept_pictures.py

They go to docs/images. Every path and every residual is from a solve of this library.
"""

import matplotlib

matplotlib.use("Agg")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from matplotlib import pyplot  # noqa: E402

from deq_keras.solvers import (  # noqa: E402
    Anderson,
    Broyden,
    FixedPointIteration,
    SolveRequest,
)
from tools.make_results_figures import IMAGES, write  # noqa: E402

_STATUS = "converged", "budget exhausted", "diverged"
# Title -> f, damping, initial state. The third and the fourth are one f.
_MAPS = {
    "a contraction": (lambda z: tf.tanh(0.9 * z) + 0.3, 1.0, -1.8),
    "no equilibrium": (lambda z: z + 0.25 + 0.15 * tf.sin(3.0 * z), 1.0, -1.8),
    "a cycle of two states": (lambda z: 0.4 - 1.3 * tf.tanh(1.6 * z), 1.0, 0.5),
    "the same f, damping=0.5": (lambda z: 0.4 - 1.3 * tf.tanh(1.6 * z), 0.5, 0.5),
}
_SOLVERS = {
    "plain iteration": (FixedPointIteration, "#1f77b4"),
    "Anderson": (Anderson, "#ff7f0e"),
    "Broyden": (Broyden, "#2ca02c"),
}


def solve(f, start, solver):
    """Returns the points at which a solver evaluates f, and the `Solution`."""
    points = []

    def record(z):
        points.append(z.numpy()[0])
        return f(z)

    return points, solver.solve(record, SolveRequest(tf.constant([start])))


def _trace(solution):
    """Returns the numbers of the evaluations of a solve, and their residuals."""
    return range(1, len(solution.trace) + 1), solution.trace[:, 0]


def cobwebs():
    """Draws steps of a solve between the graph of f and the diagonal."""
    figure, panels = pyplot.subplots(2, 2, figsize=(5.2, 5.6), layout="constrained")
    grid = np.linspace(-2, 2, 200, dtype="float32")
    for axes, (title, (f, damping, start)) in zip(panels.flat, _MAPS.items()):
        solver = FixedPointIteration(max_iter=20, damping=damping)
        points, solution = solve(f, [start], solver)
        axes.plot(grid, f(grid), color="black", label="f(z)")
        axes.plot(grid, grid, color="gray", ls=":", label="z")
        path = [(points[0][0], points[0][0])]
        for z, following in zip(points, points[1:]):
            path += [(z[0], f(z)[0]), (following[0], following[0])]
        axes.plot(*np.transpose(path), color="#1f77b4", lw=1, label="steps")
        num, status = solution.num_evaluations[0], _STATUS[solution.status[0]]
        axes.set_title(f"{title}\n{status}, {num} evaluations", fontsize="small")
        axes.set(
            xlabel="z",
            xlim=(-2, 2),
            ylim=(-2, 2),
            aspect="equal",
        )
    panels[0, 0].legend()
    return figure


def paths():
    """Draws the points of three solvers on one f in the plane, and their residuals."""
    angle, u = 1.2, np.array([0.4, -0.3], "float32")
    turn = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    turn = 1.1 * np.array(turn, "float32")

    def f(z):
        return tf.tanh(z @ turn + u)

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(5.2, 3.4), layout="constrained"
    )
    x, y = np.meshgrid(*[np.linspace(-1.1, 1.1, 40, dtype="float32")] * 2)
    states = np.stack([x.ravel(), y.ravel()], axis=1)
    norms = np.linalg.norm(f(states) - states, axis=1).reshape(x.shape)
    left.contourf(x, y, norms, 8, cmap="Greys", alpha=0.5)
    for name, (kind, color) in _SOLVERS.items():
        points, solution = solve(f, [-0.9, 0.9], kind(max_iter=60, tol=1e-5))
        left.plot(*np.transpose(points), "o-", ms=3, lw=1, color=color, label=name)
        right.semilogy(*_trace(solution), "o-", ms=3, lw=1, color=color)
    left.plot(*points[-1], "k*", ms=12, label="z*")
    left.set(title="evaluated points", xlabel="first entry", ylabel="second entry")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    right.set(title="residual", xlabel="evaluations")
    return figure


def residuals():
    """Draws residuals of linear maps of three spectral radii."""
    figure, panels = pyplot.subplots(
        1, 3, figsize=(5.2, 2.8), layout="constrained", sharey=True
    )
    random = np.random.default_rng(0)
    matrix, u = random.normal(size=(64, 64)), random.normal(size=64)
    matrix /= np.abs(np.linalg.eigvals(matrix)).max()
    for axes, radius in zip(panels, (0.7, 0.95, 1.1)):
        for name, (kind, color) in _SOLVERS.items():
            _, solution = solve(
                lambda z, r=radius: z @ (r * matrix) + u,
                np.zeros(64),
                kind(max_iter=60, tol=1e-5),
            )
            axes.semilogy(*_trace(solution), color=color, label=name)
        axes.set(xlabel="evaluations")
        axes.set_title(f"spectral radius {radius}", fontsize="small")
    panels[0].set_ylabel("residual")
    panels[0].legend(fontsize="x-small")
    return figure


FIGURES = {
    "concepts_cobwebs": cobwebs,
    "concepts_paths": paths,
    "concepts_residuals": residuals,
}


def main(folder=IMAGES):
    """Writes the figures of docs/guides/concepts.md to a folder."""
    write(FIGURES, folder)


if __name__ == "__main__":
    main()
