"""The benchmark itself, on a small workload."""

import json

import numpy as np
import pytest
import tensorflow as tf

from training.benchmarks import memory, report, solvers, timing
from training.benchmarks import workloads as built
from training.benchmarks.compiled_cell import CompiledCell
from training.benchmarks.plan import Plan
from training.benchmarks.precision import degrees_between
from training.benchmarks.training_step import TrainingStep

_EFFORT = timing.Effort(seconds=0.0, min_rounds=2, attempts=1)
_SMALL = {"sizes": {"batch": 8, "hidden": 4}, "hidden": 4}
_PLAN = Plan((6,), 4, (), _EFFORT, False, _SMALL)


def test_run_measures_and_reports():
    results = solvers.run(_PLAN, ["tiny_mlp"], log=lambda message: None)
    assert json.loads(json.dumps(results)) == results
    measured = results["deq_keras"]["tiny_mlp"]
    for name in ("fixed_point_iteration", "anderson", "broyden"):
        cost = measured["solve"][name]["6"]
        assert cost["num_evaluations"] == 6
        assert cost["ratio"]["median"] > 0
        assert measured["train"][name]["statistics"]["deq_evaluations"] <= 4
    assert {"memory", "torchdeq"} <= set(results["left_out"])
    assert "deq_jacobian" not in measured["train"]["anderson"]["statistics"]
    text = report.table(results)
    assert "**tiny_mlp**" in text and "torchdeq was left out: not asked for." in text


def test_a_solve_that_stops_early_is_refused():
    workload = built.build("tiny_mlp", **_SMALL)
    workload.cell.set_weights([0.0 * w for w in workload.cell.get_weights()])
    from training.benchmarks.solving import solve_cost

    with pytest.raises(RuntimeError, match="Received: 1 of 6 evaluations"):
        solve_cost(workload, CompiledCell(workload), "anderson", 6, _EFFORT)


def test_implicit_and_unrolled_steps_agree_at_convergence():
    workload = built.build("tiny_mlp", **_SMALL)
    implicit = TrainingStep(workload, "fixed_point_iteration", 60).gradient()
    unrolled = TrainingStep(workload, "unrolled", 60).gradient()
    assert degrees_between(implicit, unrolled) < 0.1


def test_derivatives_equal_the_jacobian():
    workload = built.build("tiny_mlp", "float64", **_SMALL)
    cell = CompiledCell(workload)
    once, _ = cell.differentiate(0, with_weights=False)()
    thrice, _ = cell.differentiate(2, with_weights=False)()
    slope = once / cell._cotangent  # df/dz is diagonal: each state is one number
    np.testing.assert_allclose(thrice, slope**3 * cell._cotangent, rtol=1e-9)


def test_ratio_is_numerator_over_denominator():
    import time

    # Far enough apart for any load of the machine.
    ratio = timing.compare(lambda: time.sleep(0.1), lambda: None, _EFFORT)
    assert ratio.median > 1
    assert ratio.numerator.rounds == 2


def test_degrees():
    assert degrees_between(np.array([1.0, 0]), np.array([0, 2.0])) == pytest.approx(90)
    assert degrees_between(np.ones(3), 5 * np.ones(3)) == pytest.approx(0, abs=1e-6)


def test_missing_output_directory_is_refused(capsys):
    with pytest.raises(SystemExit):
        solvers.main(["--out", "missing/directory/file.json"])
    assert "create it first" in capsys.readouterr().err


def test_missed_bound_is_named():
    results = {"6": {"ratio": _ratio(1.5), "num_diverged": 0}}
    ours = {"deq_keras": {"solve": {"anderson": results}}}
    (row,) = report._solve_rows("conv_block", ours, "solve")
    assert row[-1] == "<= 1.20: MISSED"


# MiB at 6 and 60 evaluations, for a state of one.
GROWS, STANDS = {"6": 60.0, "60": 600.0}, {"6": 5.0, "60": 6.0}


@pytest.mark.parametrize(
    "solver, peaks, control, verdict",
    [
        ("anderson", {"6": 80.0, "60": 82.0}, GROWS, "<= 0.1 states an NFE: met (0.0)"),
        (
            "anderson",
            {"6": 80.0, "60": 107.0},
            GROWS,
            "<= 0.1 states an NFE: MISSED (0.5)",
        ),
        ("broyden", {"6": 80.0, "60": 134.0}, GROWS, "<= 1 states an NFE: met (1.0)"),
        (
            "broyden",
            {"6": 80.0, "60": 188.0},
            GROWS,
            "<= 1 states an NFE: MISSED (2.0)",
        ),
        ("anderson", STANDS, STANDS, "not measurable here"),
        ("broyden", STANDS, {"6": None, "60": None}, "not measurable here"),
        ("unrolled", GROWS, GROWS, "the control"),
    ],
)
def test_memory_is_met_only_where_the_control_grows(solver, peaks, control, verdict):
    memory = {"unrolled": control, solver: peaks}
    ours = {"deq_keras": {"memory": memory, "state_mib": 1.0}}
    rows = report._memory_rows("conv_block", ours)
    (row,) = [row for row in rows if row[0].endswith(solver)]
    assert row[-1] == verdict


@pytest.mark.slow
def test_the_control_grows_or_memory_is_not_measurable():
    peaks = memory.peaks({"nothing": lambda: lambda: None})
    assert peaks in ({"nothing": 0.0}, memory.NOT_MEASURABLE)


def test_memory_is_not_measurable_where_the_control_does_not_grow(monkeypatch):
    monkeypatch.setattr(memory, "peak_growth", lambda call: 3.0)
    assert memory.peaks({}) == memory.NOT_MEASURABLE


def test_peak_growth_is_what_a_call_allocates():
    def call():
        tf.reduce_sum(tf.ones((16, 1024, 1024)))  # 64 MiB, dropped at once.

    growth = memory.peak_growth(call)
    # Others' small tensors come and go meanwhile.
    assert growth is None or growth == pytest.approx(64.0, abs=6.0)


def _ratio(median):
    return {"median": median, "numerator": {"other_processors": 0.0}}
