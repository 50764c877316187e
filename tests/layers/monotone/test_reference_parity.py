"""Monotone cells and splittings against values of locuslab/monotone_op_net."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.core.linearization import linearize
from deq_keras.layers import DEQ
from deq_keras.testing.problems import relative_error
from tests.layers.monotone.golden_cells import (
    GoldenNetwork,
    multiscale,
    multiscale_state,
)
from tests.regimes import slow

NETWORKS = ("fc", "conv")
SPLITTINGS = {
    "peaceman_rachford": solvers.PeacemanRachford(max_iter=300, tol=1e-10),
    "forward_backward": solvers.ForwardBackward(0.1, max_iter=2000, tol=1e-10),
}


def _transposed_product(cell, operator, state):
    return linearize(lambda z: cell.linear(z, operator), state).vjp(state)


@pytest.mark.parametrize("name", NETWORKS)
def test_operator(name):
    golden = GoldenNetwork(name)
    operator = golden.cell.inject(golden.inputs)["operator"]
    probe = golden.state("probe0")
    product = golden.cell.linear(probe, operator)
    np.testing.assert_allclose(product, golden.state("W_probe0"), atol=1e-12)
    transposed = _transposed_product(golden.cell, operator, probe)
    np.testing.assert_allclose(transposed, golden.state("WT_probe0"), atol=1e-12)


def test_operator_of_tiers():
    cell, state = multiscale(), multiscale_state()
    operator = cell.inject(tf.zeros((2, 8, 8, 2), tf.float64))["operator"]
    product = cell.linear(state, operator)
    squares = [np.sum(np.square(leaf)) for leaf in product]
    entries = [leaf[0, 1, 1, 1].numpy() for leaf in product]
    np.testing.assert_allclose(squares, [1163.7009122, 409.1770541, 109.3526606], 1e-9)
    np.testing.assert_allclose(entries, [-1.2561721398, 5.1525091180, 0.3677197795])
    transposed = _transposed_product(cell, operator, state)
    squares = [np.sum(np.square(leaf)) for leaf in transposed]
    np.testing.assert_allclose(squares, [1323.5333215, 430.4180397, 91.5138046], 1e-9)


def _check(name, solver, run):
    golden = GoldenNetwork(name)
    layer = DEQ(golden.cell, solver=SPLITTINGS[solver], dtype="float64")
    solution = layer.solve(golden.inputs)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(solution.value, golden.state("z0"), atol=1e-7)

    def gradients():
        with tf.GradientTape() as tape:
            loss = golden.loss(layer(golden.inputs, training=True))
        sources = [variable.value for variable in golden.variables.values()]
        return tape.gradient(loss, sources)

    for actual, expected in zip(run(gradients)(), golden.gradients(), strict=True):
        assert relative_error(actual, expected) < 1e-5


@pytest.mark.slow  # Of the dense network, the test of its converter is a fast one.
@pytest.mark.parametrize("solver", SPLITTINGS)
@pytest.mark.parametrize("name", NETWORKS)
def test_equilibria_and_gradients(name, solver, regime):
    _check(name, solver, regime)


@pytest.mark.parametrize("solver", ["anderson", slow("broyden")])
def test_other_solvers_find_the_same_point(solver):
    golden = GoldenNetwork("fc")
    solver = {"class_name": solver, "max_iter": 60, "tol": 1e-10}
    solution = DEQ(golden.cell, solver=solver, dtype="float64").solve(golden.inputs)
    np.testing.assert_allclose(solution.value, golden.state("z0"), atol=1e-7)
