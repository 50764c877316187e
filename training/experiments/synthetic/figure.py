"""The figure of a scalar model: its surface, and slices through it."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...files.atomic_file import replacing
from .build import curve
from .measure import surface, trajectory
from .tables import LABELS

_MARGIN = 1.5


def draw_model(path, model, config):
    """Draws f(z; x) of a model as a surface and in slices.

    Left: the surface, the plane z_out = z and their intersection, the learned
    equilibrium z*(x). Right: f(z; x) against z at some inputs, the points that the
    solver visits and the equilibria. Flatter slices need fewer points.

    Args:
        path: Path of the PNG file.
        model: The trained model.
        config: The `SyntheticConfig`.
    """
    limit = config.data.limit
    targets = curve(np.linspace(-limit, limit, 201))
    z_limits = float(targets.min()) - _MARGIN, float(targets.max()) + _MARGIN
    layer = model.get_layer("deq")
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.add_subplot(1, 2, 1, projection="3d", computed_zorder=False)
    _draw_surface(axes, layer, limit, z_limits)
    _draw_slices(figure.add_subplot(1, 2, 2), layer, config, z_limits)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _draw_surface(axes, layer, limit, z_limits):
    x, z = np.linspace(-limit, limit, 61), np.linspace(*z_limits, 61)
    grid_x, grid_z = np.meshgrid(x, z)
    out = surface(layer, x, z)
    # Axes do not clip in three dimensions.
    out = np.where((out < z_limits[0]) | (out > z_limits[1]), np.nan, out)
    axes.plot_surface(grid_x, grid_z, grid_z, color="0.5", alpha=0.25, zorder=1)
    axes.plot_surface(grid_x, grid_z, out, cmap="viridis", alpha=0.75, zorder=2)
    inputs = np.linspace(-limit, limit, 201, dtype="float32")[:, None]
    equilibrium = layer.solve(inputs).value.numpy()[:, 0]
    axes.plot(
        inputs[:, 0],
        equilibrium,
        equilibrium,
        color="crimson",
        linewidth=3,
        label=r"equilibrium $z^*(x)$",
        zorder=3,
    )
    axes.set(xlabel="$x$", ylabel="$z$", zlabel=r"$z_{\mathrm{out}}$")
    axes.set(xlim=(-limit, limit), ylim=z_limits, zlim=z_limits)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.view_init(elev=24, azim=-58)
    # Room for the labels, which the layout does not count in.
    axes.set_box_aspect(None, zoom=0.93)
    axes.legend(loc="upper left")


def _draw_slices(axes, layer, config, z_limits):
    settings = config.figure
    z = np.linspace(*z_limits, 400)
    axes.plot(z, z, color="0.6", linewidth=1, label=r"$z_{\mathrm{out}} = z$")
    for index, x in enumerate(settings.slices):
        color = f"C{index}"
        points = trajectory(layer, x, settings.solver, settings.evaluations)
        values = surface(layer, [x], points)[:, 0]
        label = f"$x = {x:g}$: {_count(points, values, config.evaluation.tol)}"
        axes.plot(z, surface(layer, [x], z)[:, 0], color=color, label=label)
        # A cobweb: from (z, z) to (z, f(z)), then to the diagonal at the next z.
        corners = np.stack([points, values], axis=1).ravel()  # z0, f0, z1, f1, ...
        axes.plot(np.repeat(points, 2), corners, color=color, linewidth=1, ls="--")
        equilibrium = layer.solve(np.full((1, 1), x, "float32")).value.numpy().item()
        axes.plot(equilibrium, equilibrium, "o", color=color, markeredgecolor="black")
    axes.set(xlim=z_limits, ylim=z_limits, xlabel="$z$", ylabel="$f(z; x)$")
    axes.set_title(f"from $z = 0$ with {LABELS[settings.solver]}", fontsize=11)
    axes.set_aspect("equal")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=9)


def _count(points, values, tol):
    """Labels the trajectory with its evaluations until the tolerance is met."""
    is_close = np.abs(values - points) <= tol * np.abs(values)
    if not is_close.any():
        return f"more than {len(points)} evaluations"
    return f"{int(is_close.argmax()) + 1} evaluations"
