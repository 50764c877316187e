"""Training steps of the multiscale cell."""

import keras
import tensorflow as tf

from deq_keras import layers

from ..compiled_cell import CompiledCell
from ..training_step import step_cost
from ..workloads import Workload

# The published models of CIFAR-10.
CELLS = {
    "TINY": {"filters": (24, 24)},
    "CIFAR LARGE": {"filters": (32, 64, 128, 256)},
}
BATCH, SIDE = 32, 32


def step_costs(effort, cells=CELLS, num_evaluations=6, **sizes):
    """Returns training steps over their ideal, by cell; see `training_step`."""
    costs = {}
    for name, arguments in cells.items():
        work = workload(name, arguments, **sizes)
        costs[name] = step_cost(
            work, CompiledCell(work), "anderson", num_evaluations, effort
        )
    return costs


def workload(name, arguments, batch=BATCH, side=SIDE):
    """Returns the `Workload` of a multiscale cell with random weights and inputs."""
    keras.utils.set_random_seed(0)
    cell = layers.MultiscaleCell(
        **{"groups": 8, "post_affine": False, **arguments}, seed=0
    )
    shape = (batch, side, side, cell.filters[0])
    cell.build(shape)
    inputs = tf.random.stateless_normal(shape, (0, 1))
    state = cell.initial_state(cell.inject(inputs))
    target = [
        tf.random.stateless_normal(leaf.shape, (0, 2 + scale))
        for scale, leaf in enumerate(state)
    ]
    return Workload(name, cell, inputs, target)
