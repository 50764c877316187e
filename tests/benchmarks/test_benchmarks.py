"""Every benchmark runs at its smallest size, and compares the same work."""

import importlib.util
import json
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from benchmarks import (
    gpu_programs,
    gradients,
    long_runs,
    peers,
    serving,
    solvers,
    time_to_accuracy,
)
from tests.regimes import slow
from training.costs import measuring
from training.errors import InputError

ROOT = pathlib.Path(__file__).parents[2]
EFFORT = measuring.Effort(seconds=0.0, min_rounds=2, attempts=1)
TINY = {"names": ["tiny_mlp"], "sizes": {"batch": 8, "hidden": 4}}


def tiny(dtype="float32"):
    return solvers.build("tiny_mlp", TINY["sizes"], dtype)


def test_command_prints_chosen_measurements_and_writes_json(tmp_path, capsys):
    def ratio(effort, size):
        found = measuring.compare(lambda: None, lambda: None, effort)
        return {"f": found, "size": size}

    def add_arguments(parser):
        parser.add_argument("--size", type=int)

    measurements = {"ratio": ratio, "never": lambda effort: 1 / 0}
    out = tmp_path / "results.json"
    command = ["--only", "ratio", "--quick", "--size", "5", "--out", str(out)]
    measuring.run("name", "Measures.", measurements, command, add_arguments)
    results = json.loads(out.read_text())
    assert results["ratio"]["size"] == 5
    assert results["ratio"]["f"]["numerator"]["rounds"] >= 2
    assert {"time", "commit", "processor"} <= set(results["environment"])
    printed = capsys.readouterr().out
    assert "ratio, size: 5" in printed and "ratio, f: " in printed


def test_commands_of_the_docs_name_measurements():
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    commands = re.findall(r"`python -m benchmarks\.(\w+)([^`]*)`", "".join(pages))
    assert commands
    for name, options in commands:
        _, _, chosen = options.partition("--only ")
        measurements = importlib.import_module(f"benchmarks.{name}").MEASUREMENTS
        assert set(chosen.partition(" --")[0].split()) <= set(measurements)


def test_solve_that_stops_early_raises():
    workload = tiny()
    workload.cell.set_weights([0.0 * w for w in workload.cell.get_weights()])
    cell = solvers.CompiledCell(workload)
    with pytest.raises(RuntimeError, match="Received: 1 of 6 evaluations"):
        solvers.solve_cost(workload, cell, "fixed_point_iteration", 6, EFFORT)


def test_implicit_and_unrolled_steps_agree_at_convergence():
    workload = tiny("float64")
    implicit, unrolled = (
        solvers.training_step(workload, name, 60)()
        for name in ("fixed_point_iteration", "unrolled")
    )
    for one, two in zip(*map(tf.nest.flatten, (implicit, unrolled)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-8)


def test_derivatives_equal_the_jacobian():
    cell = solvers.CompiledCell(tiny("float64"))
    once, _ = cell.differentiate(0, with_weights=False)()
    thrice, _ = cell.differentiate(2, with_weights=False)()
    slope = once / cell._cotangent  # df/dz is diagonal: each state is one number
    np.testing.assert_allclose(thrice, slope**3 * cell._cotangent, rtol=1e-9)


@pytest.mark.parametrize("has_checkpoints", [slow(False), True])
def test_truncated_step_equals_the_step_by_hand(has_checkpoints):
    workload = tiny("float64")
    expected = gradients.step_by_hand(workload, 3)()
    actual = gradients.truncated_step(workload, 3, has_checkpoints)()
    for one, two in zip(*map(tf.nest.flatten, (actual, expected)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)


@pytest.mark.slow
def test_solvers():
    results = solvers.times(EFFORT, **TINY, budgets=(6,), step_budget=4)["tiny_mlp"]
    assert results["calls_ms"]["evaluate"] > 0
    for name in solvers.SOLVERS:
        assert results["solve"][f"{name}, NFE 6"]["median"] > 0
        assert results["train"][name].median > 0


@pytest.mark.slow
def test_eager_calls():
    rows = ["dense 32 x 1"]
    results = peers.eager(EFFORT, rows, libraries=())[rows[0]]
    assert len(results) == 2 * len(solvers.SOLVERS)
    for times in results.values():
        assert all(times["ms"][way] > 0 for way in ("op by op", "ours", "Dense"))


@pytest.mark.slow
def test_long_runs_find_memory_that_grows():
    grown = {}
    for kind in ("control", "DEQ"):
        found = long_runs._request(kind, 200, "saved_model")
        grown[kind] = found["MiB at the end"] - found["MiB after a tenth"]
        assert found["ms in the last tenth"] > 0
    # Other memory of the process grows meanwhile.
    assert grown["control"] > 36 > 12 > grown["DEQ"]


@pytest.mark.slow
def test_compaction():
    sizes = {"batch": 8, "length": 4, "width": 8, "inner": 16}
    results = solvers.compaction(EFFORT, ["transformer_layer"], sizes)
    assert len(results) == len(solvers.SOLVERS)
    for cost in results.values():
        assert 1.0 <= cost["rows"] < cost["masked_rows"]
        assert cost["median_evaluations"] < cost["most_evaluations"]


@pytest.mark.slow
def test_peers():
    if not peers._installed(peers.LIBRARIES):
        pytest.skip("No peer is installed.")
    rows = ["dense 32 x 1"]
    results = peers.calls(EFFORT, rows)["dense 32 x 1"]
    for key in ("solve, anderson", "step, anderson"):
        for name in peers._installed(["torchdeq", "jaxopt"]):
            assert results[key]["ms"][name] > 0
            assert results[key][f"XLA over {name}"]["median"] > 0
    results = peers.tolerance(EFFORT, rows)["dense 32 x 1"]["anderson"]
    assert results["largest residual"]["ours"] <= 1e-4
    assert all(np.isfinite([*results["ms"].values()]))


@pytest.mark.slow
def test_signatures():
    for cost in serving.signatures(EFFORT).values():
        sides = [cost[side].median for side in ("numerator", "denominator")]
        assert cost["overhead_ms"] == sides[0] - sides[1]


# The labels are the signs of the first input: any network learns them.
INPUTS = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
EXAMPLES = time_to_accuracy.Examples(INPUTS, (INPUTS[:, 0] > 0).astype("int32"))


def contest(**changes):
    def build(kind, depth, training):
        cell = (6, deq_keras.layers.DenseCell), (3, deq_keras.layers.DenseCell)
        return time_to_accuracy.build(
            *(kind, depth, training),
            lambda inputs, units: inputs,
            keras.layers.Dense(2),
            *cell,
        )

    values = {"depth": 4, "batch_size": 8, "learning_rate": 0.05, "target": 90.0}
    values |= {"every": 2, "max_updates": 200, "narrow_state": 3}
    load = lambda: (EXAMPLES, EXAMPLES)  # noqa: E731
    return time_to_accuracy.Contest(load, build, **{**values, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DEQ", "weight-tied"])
def test_training_ends_at_the_target(kind):
    keras.utils.set_random_seed(0)
    small = contest()
    model = small.build(kind, small.depth, EXAMPLES)
    found = time_to_accuracy.train(model, small, EXAMPLES, EXAMPLES, 0)
    assert found["reached"] and found["best_accuracy"] >= 90.0
    assert found["updates"] < 200 and found["updates"] % small.every == 0
    if kind == "DEQ":
        assert found["updates"] < found["evaluations"] <= 30 * found["updates"]
    else:
        assert found["evaluations"] == small.depth * found["updates"]


def test_explicit_layers_are_applied_in_order():
    cells = [deq_keras.layers.DenseCell(6) for _ in range(3)]
    found = time_to_accuracy.ExplicitLayers(cells, 3)(INPUTS)
    state = cells[0].initial_state(cells[0].inject(INPUTS))
    for cell in cells:
        state = cell(state, cell.inject(INPUTS))
    np.testing.assert_allclose(found, state, atol=1e-6)


def test_seeds_without_the_target_count_as_longest():
    runs = ((True, 9.0), (False, 5.0), (True, 3.0))
    runs = [{"reached": reached, "seconds": seconds} for reached, seconds in runs]
    found = time_to_accuracy.summary(runs)
    assert found["reached"] == "2 of 3" and found["median_seconds"] == 9.0
    runs[0]["reached"] = False
    found = time_to_accuracy.summary(runs)
    assert found["median_seconds"] == time_to_accuracy.NOT_REACHED


@pytest.mark.parametrize("name", ["characters", slow("digits")])
def test_networks_of_a_contest_have_as_many_parameters(name):
    contest = time_to_accuracy.CONTESTS[name]
    training, _ = contest.load()
    deq, tied, untied = (
        contest.build(kind, contest.depth, training).count_params()
        for kind in time_to_accuracy.MODELS
    )
    assert tied == deq
    assert untied == pytest.approx(deq, rel=0.03)


# A loop with a ring of four states, which is read in one slot and updated in another.
PROGRAM = """
%fused_update (ring: f32[4,2,8], slot: s32[], new: f32[2,8]) -> f32[4,2,8] {
  %ring = f32[4,2,8]{2,1,0} parameter(0)
  %slot = s32[] parameter(1)
  %new = f32[2,8]{1,0} parameter(2)
  %row = f32[1,2,8]{2,1,0} bitcast(%new)
  ROOT %update = f32[4,2,8]{2,1,0} dynamic-update-slice(%ring, %row, %slot)
}

%fused_sum (ring: f32[4,2,8], slot: s32[]) -> (f32[2], f32[2]) {
  %ring = f32[4,2,8]{2,1,0} parameter(0)
  %slot = s32[] parameter(1)
  %slice = f32[1,2,8]{2,1,0} dynamic-slice(%ring, %slot)
  %row = f32[2,8]{1,0} bitcast(%slice)
  %zero = f32[] constant(0)
  %sum = f32[2]{0} reduce(%row, %zero), dimensions={1}, to_apply=%add
  ROOT %both = (f32[2]{0}, f32[2]{0}) tuple(%sum, %sum)
}

%keep (state: f32[2,8]) -> f32[2,8] {
  %state = f32[2,8]{1,0} parameter(0)
  ROOT %copy = f32[2,8]{1,0} copy(%state)
}

%body (arg: (s32[], f32[4,2,8], f32[2,8])) -> (s32[], f32[4,2,8], f32[2,8]) {
  %arg = (s32[], f32[4,2,8]{2,1,0}, /*index=2*/f32[2,8]{1,0}) parameter(0)
  %slot = s32[] get-tuple-element(%arg), index=0
  %old = f32[4,2,8]{2,1,0} get-tuple-element(%arg), index=1
  %state = f32[2,8]{1,0} get-tuple-element(%arg), index=2
  %new = f32[4,2,8]{2,1,0} fusion(%old, %slot, %state), calls=%fused_update
  %sums = (f32[2]{0}, f32[2]{0}) fusion(%new, %slot), calls=%fused_sum
  %is_due = f32[2,8]{1,0} conditional(%slot), branch_computations={%keep, %keep}
  ROOT %next = (s32[], f32[4,2,8]{2,1,0}, f32[2,8]{1,0}) tuple(%slot, %new, %state)
}

ENTRY %main (x: f32[2,8]) -> f32[2,8] {
  %x = (s32[], f32[4,2,8]{2,1,0}, f32[2,8]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[4,2,8]{2,1,0}, f32[2,8]{1,0}) while(%x), body=%body
}
"""


def test_costs_of_a_loop_of_a_gpu_program():
    (loop,) = gpu_programs.loops(PROGRAM)
    state, number = 2 * 8 * 4, 4
    update = 2 * state + number  # Reads a state and an index, and writes a slot.
    sums = state + number + 2 * 2 * number
    assert loop == {
        "kernels": 2,
        "megabytes": pytest.approx((update + sums) / 1e6),
        "waits": 2,
        "branches": {
            str(i): {"kernels": 1, "megabytes": pytest.approx(2 * state / 1e6)}
            for i in (0, 1)
        },
    }


def test_gpu_programs_name_what_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"JAX.*pip install"):
        gpu_programs.solves(EFFORT)
