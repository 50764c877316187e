"""Drivers who avoid jams: a stochastic user equilibrium, fitted to observed traffic."""

import itertools

import keras
import numpy as np
from keras import ops

import deq_keras

from .task import Task, dense_network, true_solutions

# Streets of a grid of 3 x 3 crossings, to the right and down.
_ROADS = [(i, i + 1) for i in range(9) if i % 3 < 2] + [(i, i + 3) for i in range(6)]
_TRIPS = [(0, 8), (1, 8), (3, 8), (0, 7)]
# On half of the days, one of these roads is closed.
_CLOSED_IN_TRAINING = (0, 3, 9)
_CLOSED_IN_TESTS = (2, 4, 8)


def _routes(start, end):
    """Returns all routes as lists of roads."""
    if start == end:
        return [[]]
    return [
        [number, *rest]
        for number, (first, last) in enumerate(_ROADS)
        if first == start
        for rest in _routes(last, end)
    ]


_ROUTES = [(trip, route) for trip in _TRIPS for route in _routes(*trip)]
_IS_ON = np.array([np.isin(range(len(_ROADS)), route) for _, route in _ROUTES], float)
_IS_OF = np.array([[trip == own for own, _ in _ROUTES] for trip in _TRIPS], float)


@keras.saving.register_keras_serializable(package="deq_keras_training")
class TrafficCell(deq_keras.layers.EquilibriumCell):
    """The traffic at which no driver learns anything new from the jams.

        f(flow) = sum over trips of demand * softmax over routes (-time of the route)
        time of a road = free * (1 + 0.15 (flow / capacity)^4)

    The softmax is a logit choice; times are in units of its scale. Free times and
    capacities are learned. Inputs are the demands of the trips and, for each road,
    whether it is open: `(trips + roads,)`. The state is the flow on each road.

    Reference:

    - Fisk (1980), "Some developments in equilibrium traffic assignment".
    """

    def build(self, input_shape):
        shape = (len(_ROADS),)
        self.log_free = self.add_weight(shape, "zeros", name="log_free")
        self.log_capacity = self.add_weight(shape, "zeros", name="log_capacity")

    def inject(self, inputs, training=False):
        if not self.built:
            self.build(inputs.shape)
        demands, is_open = inputs[:, : len(_TRIPS)], inputs[:, len(_TRIPS) :]
        is_on = ops.convert_to_tensor(_IS_ON, inputs.dtype)
        is_of = ops.convert_to_tensor(_IS_OF, inputs.dtype)
        num_closed = (1 - is_open) @ ops.transpose(is_on)  # (batch, routes)
        is_possible = is_of * ops.cast(num_closed < 0.5, inputs.dtype)[:, None]
        return {
            "demands": demands,
            "penalty": 1e4 * (1 - is_possible),  # (batch, trips, routes)
            "is_on": is_on,  # (routes, roads)
            "is_passed": ops.transpose(is_on),
            "free": ops.exp(self.log_free),
            "capacity": ops.exp(self.log_capacity),
        }

    def initial_state(self, injection):
        return ops.zeros_like(injection["demands"][:, :1] * injection["free"])

    def call(self, state, injection):
        # A step of a solver can leave the flows that exist.
        load = ops.relu(state) / injection["capacity"]
        times = injection["free"] * (1 + 0.15 * load**4)
        times = times @ injection["is_passed"]  # (batch, routes)
        shares = ops.softmax(-times[:, None] - injection["penalty"], axis=-1)
        routes = ops.sum(injection["demands"][..., None] * shares, axis=1)
        return routes @ injection["is_on"]


def draw(num_train, seed):
    """Draws days: demands, closed roads, and flows that were counted with noise."""
    random = np.random.default_rng(seed)
    cell = TrafficCell(dtype="float64")
    cell.build(None)
    cell.log_free.assign(random.uniform(-0.7, 0.7, len(_ROADS)))
    cell.log_capacity.assign(random.uniform(-0.7, 0.7, len(_ROADS)))
    solve = true_solutions(cell, damping=0.05)

    def days(count, closed, demand=1.0, noise=0.0):
        demands = demand * random.uniform(0.2, 1.0, (count, len(_TRIPS)))
        is_open = np.ones((count, len(_ROADS)))
        # `None` closes no road.
        for day, road in zip(range(count), itertools.cycle(closed)):
            if road is not None:
                is_open[day, road] = 0
        inputs = np.concatenate([demands, is_open], axis=1)
        flows = solve(inputs).numpy()
        flows += noise * random.normal(size=flows.shape)
        return inputs.astype("float32"), flows.astype("float32")

    known = [*_CLOSED_IN_TRAINING, *[None] * len(_CLOSED_IN_TRAINING)]
    tests = {
        "as in training": days(256, known),
        "another road closed": days(256, _CLOSED_IN_TESTS),
        "demand of 150 %": days(256, [None], 1.5),
    }
    return days(num_train, known, noise=0.02), tests


TRAFFIC = Task(
    draw,
    (len(_TRIPS) + len(_ROADS),),
    TrafficCell,
    dense_network(64, len(_ROADS)),
)
