"""What is compared, on small workloads: the same work on both sides."""

import numpy as np
import pytest
import tensorflow as tf

from training.benchmarks import costs, gradients, solvers, workloads
from training.benchmarks.measuring import Effort

EFFORT = Effort(seconds=0.0, min_rounds=2, attempts=1)
SMALL = {"sizes": {"batch": 8, "hidden": 4}, "hidden": 4}


def test_a_solve_that_stops_early_is_refused():
    workload = workloads.build("tiny_mlp", **SMALL)
    workload.cell.set_weights([0.0 * w for w in workload.cell.get_weights()])
    cell = costs.CompiledCell(workload)
    with pytest.raises(RuntimeError, match="Received: 1 of 6 evaluations"):
        costs.solve_cost(workload, cell, "anderson", 6, EFFORT)


def test_implicit_and_unrolled_steps_agree_at_convergence():
    workload = workloads.build("tiny_mlp", **SMALL)
    implicit = costs.TrainingStep(workload, "fixed_point_iteration", 60).gradient()
    unrolled = costs.TrainingStep(workload, "unrolled", 60).gradient()
    assert solvers.degrees_between(implicit, unrolled) < 0.1


@pytest.mark.parametrize("remat", [False, True])
def test_truncated_step_equals_the_step_by_hand(remat):
    workload = workloads.build("tiny_mlp", dtype="float64")
    expected = gradients.step_by_hand(workload, 3)()
    actual = gradients.truncated_step(workload, 3, remat)()
    pairs = zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)
    for one, two in pairs:
        tf.debugging.assert_near(one, two, rtol=1e-9)


def test_derivatives_equal_the_jacobian():
    workload = workloads.build("tiny_mlp", "float64", **SMALL)
    cell = costs.CompiledCell(workload)
    once, _ = cell.differentiate(0, with_weights=False)()
    thrice, _ = cell.differentiate(2, with_weights=False)()
    slope = once / cell._cotangent  # df/dz is diagonal: each state is one number
    np.testing.assert_allclose(thrice, slope**3 * cell._cotangent, rtol=1e-9)


def test_degrees():
    degrees = solvers.degrees_between
    assert degrees(np.array([1.0, 0]), np.array([0, 2.0])) == pytest.approx(90)
    assert degrees(np.ones(3), 5 * np.ones(3)) == pytest.approx(0, abs=1e-6)


def test_limits():
    assert solvers.at_most(1.2, {"median": 1.5}) == {"bound": "<= 1.20", "met": False}
    assert solvers.at_most(1.2, {"median": 1.2})["met"] is True
    assert solvers.at_most(None, {"median": 1.2}) == {}


# MiB at 6 and 60 evaluations, for a state of one.
GROWING, CONSTANT = {"6": 60.0, "60": 600.0}, {"6": 5.0, "60": 6.0}


@pytest.mark.parametrize(
    ("solver", "peaks", "control", "bound", "met"),
    [
        ("anderson", {"6": 80.0, "60": 82.0}, GROWING, "<= 0.1 * (0.0)", True),
        ("anderson", {"6": 80.0, "60": 107.0}, GROWING, "<= 0.1 * (0.5)", False),
        ("broyden", {"6": 80.0, "60": 134.0}, GROWING, "<= 1 * (1.0)", True),
        ("broyden", {"6": 80.0, "60": 188.0}, GROWING, "<= 1 * (2.0)", False),
        ("anderson", CONSTANT, CONSTANT, "<= 0.1 *", None),
        ("broyden", CONSTANT, {"6": None, "60": None}, "<= 1 *", None),
    ],
)
def test_memory_is_met_only_where_the_control_grows(solver, peaks, control, bound, met):
    peaks = {**dict.fromkeys(costs.SOLVERS, CONSTANT), solver: peaks}
    results = solvers.bounded_peaks("conv_block", {**peaks, "unrolled": control}, 1.0)
    assert results["unrolled"] == control
    expected = {"bound": bound.replace("*", "states per NFE"), "met": met}
    assert results[solver] == {**peaks[solver], **expected}


@pytest.mark.slow
def test_the_control_grows_or_memory_is_not_measurable():
    peaks = costs.peaks(lambda: lambda: None, {"nothing": {}})
    assert peaks in ({"nothing": 0.0}, costs.NOT_MEASURABLE)


def test_memory_is_not_measurable_where_the_control_does_not_grow(monkeypatch):
    monkeypatch.setattr(costs, "peak_growth", lambda call: 3.0)
    assert costs.peaks(lambda: None, {}) == costs.NOT_MEASURABLE


def test_peak_growth_is_what_a_call_allocates():
    def call():
        tf.reduce_sum(tf.ones((16, 1024, 1024)))  # 64 MiB, dropped at once.

    growth = costs.peak_growth(call)
    # Small tensors of others come and go meanwhile.
    assert growth is None or growth == pytest.approx(64.0, abs=6.0)
