"""Training steps of the Transformer cell, and what its `inject` saves."""

import keras
import tensorflow as tf

from deq_keras import layers, solvers

from ..compiled_cell import CompiledCell
from ..solving import layer
from ..timing import compare
from ..training_step import step_cost
from ..workloads import Workload

# The small model of the configs, and the published one of WikiText-103.
CELLS = {
    "128 wide": {
        "cell": {"units": 128, "num_heads": 4, "intermediate_dim": 512},
        "batch": 12,
        "length": 64,
    },
    "700 wide": {
        "cell": {"units": 700, "num_heads": 10, "intermediate_dim": 48000},
        "batch": 1,
        "length": 150,
    },
}


class EverythingCell(layers.EquilibriumCell):
    """Computes at every evaluation what the cell in it computes once a solve."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def initial_state(self, inputs):
        return tf.zeros_like(inputs["inputs"])

    def call(self, state, inputs):
        return self.cell(state, self.cell.inject(inputs))


def step_costs(effort, cells=CELLS, num_evaluations=12, solver="anderson"):
    """Returns training steps over their ideal, by cell; see `training_step`."""
    costs = {}
    for name, sizes in cells.items():
        work = workload(name, **sizes)
        costs[name] = step_cost(
            work, CompiledCell(work), solver, num_evaluations, effort
        )
    return costs


def injection_costs(effort, cells=CELLS, num_evaluations=12):
    """Returns, by cell, a solve that injects at every evaluation over one that injects
    once. Both have a memory as long as the segment."""
    costs = {}
    for name, sizes in cells.items():
        work = workload(name, **sizes)
        inputs = {"inputs": work.injection, "memory": _memory(work)}
        every_time = _solve(EverythingCell(work.cell), inputs, num_evaluations)
        once = _solve(work.cell, inputs, num_evaluations)
        costs[name] = compare(every_time, once, effort)
    return costs


def workload(name, cell, batch, length):
    """Returns the `Workload` of a Transformer cell with random weights and inputs."""
    keras.utils.set_random_seed(0)
    built = layers.TransformerCell(**cell)
    shape = (batch, length, built.units)
    built.build(shape)
    inputs, target = (tf.random.stateless_normal(shape, (0, seed)) for seed in (1, 2))
    return Workload(name, built, inputs, target)


def _memory(work):
    states = tf.random.stateless_normal(work.injection.shape, (0, 3))
    return {
        "states": states,
        "injections": work.cell.injection_projection(work.injection),
    }


def _solve(cell, inputs, num_evaluations):
    deq = layer(cell, solvers.FixedPointIteration(num_evaluations, tol=None))
    deq(inputs)  # Builds it.
    solve = tf.function(lambda inputs: deq.solve(inputs).value)
    compiled = solve.get_concrete_function(inputs)
    return lambda: compiled(inputs)
