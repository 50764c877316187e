"""Optimization inside a cell: a quadratic program and optimal transport."""

import keras
import numpy as np
from keras import ops

import deq_keras

from .task import Task, dense_network, true_solutions

_NUM_GOODS = 6
_NUM_PLACES = 8


@keras.saving.register_keras_serializable(package="deq_keras_training")
class QuadraticProgramCell(deq_keras.layers.EquilibriumCell):
    """Solves a quadratic program by ADMM; its matrix and prices are learned.

        x* = argmin_x x^T Q x / 2 - values^T x   with  x >= 0,  prices^T x <= budget

    With the constraints as `A x <= most`, Q = L L^T + I / 10 and P(v) = min(v, most),
    the state {x, v} is the equilibrium of

        x = (Q + A^T A)^-1 (values + A^T (2 P(v) - v)),   v = v + A x - P(v)

    Inputs are values and budget `(goods + 1,)`.

    Reference:

    - Stellato et al. (2020), "OSQP: an operator splitting solver for quadratic
      programs".
    """

    def build(self, input_shape):
        goods = input_shape[-1] - 1
        identity = keras.initializers.Identity()
        self.factor = self.add_weight((goods, goods), identity, name="factor")
        self.log_prices = self.add_weight((goods,), "zeros", name="log_prices")

    def inject(self, inputs, training=False):
        if not self.built:
            self.build(inputs.shape)
        values, budget = inputs[:, :-1], inputs[:, -1:]
        identity = ops.eye(ops.shape(values)[1], dtype=values.dtype)
        quadratic = self.factor @ ops.transpose(self.factor) + 0.1 * identity
        rows = ops.concatenate([-identity, ops.exp(self.log_prices)[None]], axis=0)
        return {
            "values": values,
            "rows": rows,
            "columns": ops.transpose(rows),
            "inverse": ops.inv(quadratic + ops.transpose(rows) @ rows),
            "most": ops.concatenate([0 * values, budget], axis=1),
        }

    def initial_state(self, injection):
        return {"x": 0 * injection["values"], "v": 0 * injection["most"]}

    def call(self, state, injection):
        v, projected = state["v"], ops.minimum(state["v"], injection["most"])
        x = injection["values"] + (2 * projected - v) @ injection["rows"]
        x = x @ injection["inverse"]
        return {"x": x, "v": v + x @ injection["columns"] - projected}


@keras.saving.register_keras_serializable(package="deq_keras_training")
class SinkhornCell(deq_keras.layers.EquilibriumCell):
    """Solves entropic optimal transport by Sinkhorn's method; its costs are learned.

        plan = exp((f_i + g_j - cost_ij)),   f = log a - logsumexp_j(g_j - cost_ij),
        g = log b - logsumexp_i(f_i - cost_ij)

    Inputs are logarithms of the sums of rows and columns, `(2, places)`. The state is
    f, with a mean of zero, because a constant can move from f to g, and the plan.

    Reference:

    - Cuturi (2013), "Sinkhorn distances: lightspeed computation of optimal transport".
    """

    def build(self, input_shape):
        shape = (input_shape[-1], input_shape[-1])
        self.cost = self.add_weight(shape, "zeros", name="cost")

    def inject(self, inputs, training=False):
        if not self.built:
            self.build(inputs.shape)
        cost = ops.broadcast_to(self.cost, (ops.shape(inputs)[0], *self.cost.shape))
        return {"log_a": inputs[:, 0], "log_b": inputs[:, 1], "cost": cost}

    def initial_state(self, injection):
        return {"f": 0 * injection["log_a"], "plan": 0 * injection["cost"]}

    def call(self, state, injection):
        cost = injection["cost"]
        g = injection["log_b"] - ops.logsumexp(state["f"][:, :, None] - cost, axis=1)
        f = injection["log_a"] - ops.logsumexp(g[:, None, :] - cost, axis=2)
        plan = ops.exp(f[:, :, None] + g[:, None, :] - cost)
        return {"f": f - ops.mean(f, axis=1, keepdims=True), "plan": plan}


def draw_budget(num_train, seed):
    """Draws decisions; the tests have larger budgets, too."""
    random = np.random.default_rng(seed)
    cell = QuadraticProgramCell(dtype="float64")
    cell.build((None, _NUM_GOODS + 1))
    noise = random.normal(size=(_NUM_GOODS, _NUM_GOODS))
    cell.factor.assign(np.eye(_NUM_GOODS) + 0.4 * noise)
    cell.log_prices.assign(random.uniform(-0.7, 0.7, _NUM_GOODS))
    solve = true_solutions(cell)

    def pair(count, lowest, highest):
        values = random.normal(2.0, 1.0, (count, _NUM_GOODS))
        budgets = random.uniform(lowest, highest, (count, 1))
        inputs = np.concatenate([values, budgets], axis=1)
        return inputs.astype("float32"), np.float32(solve(inputs)["x"])

    tests = {"as in training": pair(256, 1, 3), "larger budgets": pair(256, 3, 6)}
    return pair(num_train, 1, 3), tests


def draw_transport(num_train, seed):
    """Draws plans; the tests have more unequal marginals, too."""
    random = np.random.default_rng(seed)
    cell = SinkhornCell(dtype="float64")
    cell.build((None, 2, _NUM_PLACES))
    places = random.uniform(size=(2, _NUM_PLACES, 2))
    cell.cost.assign(6 * np.linalg.norm(places[0][:, None] - places[1], axis=-1))
    solve = true_solutions(cell)

    def pair(count, concentration):
        sums = 1e-3 + random.gamma(concentration, size=(count, 2, _NUM_PLACES))
        inputs = np.log(sums / sums.sum(axis=-1, keepdims=True))
        return inputs.astype("float32"), np.float32(solve(inputs)["plan"])

    tests = {"as in training": pair(256, 3.0), "unequal sums": pair(256, 0.3)}
    return pair(num_train, 3.0), tests


def plan_network(inputs):
    logits = dense_network(64, _NUM_PLACES**2)(keras.layers.Flatten()(inputs))
    return ops.reshape(ops.softmax(logits), (-1, _NUM_PLACES, _NUM_PLACES))


BUDGET = Task(
    draw_budget,
    (_NUM_GOODS + 1,),
    QuadraticProgramCell,
    dense_network(64, _NUM_GOODS),
    decode=lambda state: state["x"],
)
TRANSPORT = Task(
    draw_transport,
    (2, _NUM_PLACES),
    SinkhornCell,
    plan_network,
    decode=lambda state: state["plan"],
)
