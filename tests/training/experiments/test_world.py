"""The experiment `world`: its cells solve what they state, and its runs report."""

import copy

import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from tests.training.runs import small_runs
from training.config import reading as configs
from training.experiments.world import games, graph_data, graphs, optimization
from training.experiments.world.job import WorldJob
from training.experiments.world.schema import TASKS
from training.experiments.world.steady_states import ReactionDiffusionCell
from training.runs.train import build, enter_phase

RANDOM = np.random.default_rng(0)
TINY = {
    "experiment": "world",
    "tensorboard": False,
    "data": {"task": "communities", "num_train": 8, "batch_size": 4},
    "model": {"solver": {"class_name": "anderson", "max_iter": 8}},
    "phases": [{"epochs": 1}],
    "variants": {"equilibrium": {}, "plain": {"model.network": "plain"}},
    "evaluation": {"budgets": [2, 4], "num_samples": 2, "max_iter": 4},
}


def exact(cell, solver=None):
    """Returns a layer that solves a cell to rounding."""
    solver = solver or deq_keras.solvers.Anderson(200, 1e-11)
    adjoint = deq_keras.solvers.GMRES(40, 1e-11, restart=40)
    gradient = deq_keras.gradients.ImplicitGradient(adjoint)
    return deq_keras.layers.DEQ(cell, solver, gradient, None)


def check_gradient(layer, key, inputs, step=1e-5):
    """Compares the gradient of a random sum with central differences."""
    inputs = tf.constant(inputs)
    direction = tf.constant(RANDOM.normal(size=inputs.shape))
    low, high = (layer(inputs + sign * step * direction)[key] for sign in (-1, 1))
    weights = tf.constant(RANDOM.normal(size=low.shape))
    expected = tf.reduce_sum(weights * (high - low)) / (2 * step)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(weights * layer(inputs, training=True)[key])
    found = tf.reduce_sum(tape.gradient(total, inputs) * direction)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_quadratic_program():
    cell = optimization.QuadraticProgramCell(dtype="float64")
    layer = exact(cell)
    inputs = np.concatenate([RANDOM.normal(1, 1, (8, 4)), np.ones((8, 1))], axis=1)
    check_gradient(layer, "x", inputs)
    cell.log_prices.assign([0.3, -0.2, 0.1, 0.0])
    x, v = (layer(inputs)[name].numpy() for name in ("x", "v"))
    rows = np.concatenate([-np.eye(4), [np.exp([0.3, -0.2, 0.1, 0.0])]])
    most = np.array([0, 0, 0, 0, 1])
    assert np.max(x @ rows.T - most) < 1e-8
    # The conditions of Karush, Kuhn and Tucker.
    multipliers = np.maximum(v - most, 0)
    np.testing.assert_allclose(multipliers * (x @ rows.T - most), 0, atol=1e-8)
    slopes = 1.1 * x - inputs[:, :4] + multipliers @ rows
    np.testing.assert_allclose(slopes, 0, atol=1e-7)


def test_optimal_transport():
    cell = optimization.SinkhornCell(dtype="float64")
    layer = exact(cell, deq_keras.solvers.FixedPointIteration(500, 1e-12))
    inputs = RANDOM.dirichlet(np.ones(4), (3, 2))
    layer.build((3, 2, 4))
    cost = RANDOM.uniform(0, 3, (4, 4))
    cell.cost.assign(cost)
    plan = layer(np.log(inputs))["plan"].numpy()
    np.testing.assert_allclose(plan.sum(axis=2), inputs[:, 0], atol=1e-9)
    np.testing.assert_allclose(plan.sum(axis=1), inputs[:, 1], atol=1e-9)
    # log(plan) + cost is a sum of functions of the row and of the column.
    potential = np.log(plan) + cost
    mixed = potential - potential[:, :1] - potential[:, :, :1] + potential[:, :1, :1]
    np.testing.assert_allclose(mixed, 0, atol=1e-9)
    check_gradient(layer, "plan", np.log(inputs))


@pytest.mark.parametrize("n", [5, 8])
def test_steady_state_solves_the_equation_on_each_grid(n):
    cell = ReactionDiffusionCell(dtype="float64")
    sources = 30 * RANDOM.normal(size=(2, n, n, 1))
    u = np.pad(exact(cell)(sources).numpy(), [(0, 0), (1, 1), (1, 1)])
    neighbors = u[:, 2:, 1:-1] + u[:, :-2, 1:-1] + u[:, 1:-1, 2:] + u[:, 1:-1, :-2]
    u = u[:, 1:-1, 1:-1]
    a, b = (np.exp(weight) for weight in (cell.log_a, cell.log_b))
    reaction = (a * np.tanh(b * u[..., None])).sum(axis=-1)
    left = (4 * u - neighbors) * (n + 1) ** 2 + reaction
    np.testing.assert_allclose(left, sources[..., 0], atol=1e-6)


def test_karate_club():
    assert graph_data.EDGES.shape == (78, 2)
    assert len({tuple(edge) for edge in graph_data.EDGES.tolist()}) == 78
    assert np.all(graph_data.EDGES[:, 0] < graph_data.EDGES[:, 1])
    counts = np.bincount(graph_data.EDGES.ravel(), minlength=34)
    # Zachary's degrees.
    degrees = "16 9 10 6 3 4 4 4 5 2 3 1 2 5 2 2 2 2 2 3 2 2 2 5 3 3 2 4 3 4 4 6 12 17"
    np.testing.assert_array_equal(counts, np.fromstring(degrees, int, sep=" "))
    assert np.bincount(graph_data.LABELS).tolist() == [17, 17]


def test_padding_and_lists_of_edges_do_not_change_labels():
    solve = exact(graphs.LabelPropagationCell(dtype="float64"))
    _, lengths = graph_data.moons(12, np.random.default_rng(0))
    packed = graphs.pack(lengths, np.arange(12) % 2, [0, 1], 15)[0][None]
    padded = solve(graphs.unpack(packed)).numpy()
    alone = solve(graphs.unpack(packed[:, :12, :14])).numpy()
    np.testing.assert_allclose(padded[:, :12], alone, atol=1e-6)
    assert not padded[:, 12:].any() and np.all(alone[:, 2:] > 0)
    edges = np.argwhere(lengths > 0)
    listed = {
        "known": packed[:, :12, :2],
        "edges": edges[None, :, ::-1],
        "lengths": lengths[tuple(edges.T)][None],
    }
    np.testing.assert_allclose(solve(listed), alone, atol=1e-6)


def test_traffic_conserves_drivers_and_avoids_closed_roads():
    solver = deq_keras.solvers.FixedPointIteration(500, 1e-10, damping=0.2)
    solve = exact(games.TrafficCell(dtype="float64"), solver)
    demands, is_open = RANDOM.uniform(0.2, 1, (3, 4)), np.ones((3, 12))
    is_open[1:, 2] = 0
    flow = solve(np.concatenate([demands, is_open], axis=1)).numpy()
    assert np.all(flow >= 0) and not flow[1:, 2].any() and flow[0, 2] > 0.01
    for crossing in range(9):
        balance = sum(
            flow[:, road] * ((last == crossing) - (first == crossing) * 1.0)
            for road, (first, last) in enumerate(games._ROADS)
        )
        expected = sum(
            demands[:, trip] * ((last == crossing) - (first == crossing) * 1.0)
            for trip, (first, last) in enumerate(games._TRIPS)
        )
        np.testing.assert_allclose(balance, expected, atol=1e-7)


def make_config(task):
    mapping = {**copy.deepcopy(TINY), "data": {**TINY["data"], "task": task}}
    return configs.resolve(mapping)


def test_takes_a_step():
    """A slow test trains the networks of all tasks."""
    job = WorldJob(configs.variant(make_config(TASKS[0]), "equilibrium"))
    with small_runs.eagerly():
        model, optimizer, (span,) = build(job)
        enter_phase(job, model, span, optimizer, model)
        small_runs.take_step(model, *next(iter(job.feed.fit_arguments(range(1))["x"])))


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_run_compares_its_networks(task, tmp_path):
    directory = small_runs.finished(tmp_path / "run", make_config(task))
    text = (directory.path / "report.txt").read_text()
    assert "| plain | " in text and "| equilibrium | " in text
    evaluation = small_runs.evaluation(directory.path / "plain")
    (row,) = evaluation["budgets"]
    first = next(iter(evaluation["test_sets"].values()))
    assert first["error"] == pytest.approx(row["error"])
