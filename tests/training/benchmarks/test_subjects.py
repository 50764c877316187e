"""Every benchmark runs at its smallest size, and its numbers make sense."""

import json

import numpy as np
import pytest
import tensorflow as tf
import yaml
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from training.benchmarks import costs, half_precision, runner, solvers, workloads
from training.benchmarks.half_precision import REGIMES
from training.benchmarks.measuring import Effort, resident_memory
from training.benchmarks.serving import moving
from training.cli import main

EFFORT = Effort(seconds=0.0, min_rounds=2, attempts=1)
TINY = {"sizes": {"batch": 8, "hidden": 4}, "hidden": 4}


def measured(benchmark, name, **options):
    results = runner.run(runner.find(benchmark), [name], EFFORT, {name: options})
    assert json.loads(json.dumps(results)) == results
    assert runner.table(results)
    return results[name]


@pytest.mark.slow
def test_solvers():
    small = {"names": ["tiny_mlp"], "budgets": (6,), "step_budget": 4, **TINY}
    results = measured("solvers", "times", **small)["tiny_mlp"]
    assert results["calls_ms"]["evaluate"] > 0
    for name in costs.SOLVERS:
        assert results["solve"][name]["NFE 6"]["median"] > 0
        assert results["train"][name]["statistics"]["deq_evaluations"] <= 4
    assert "deq_penalty" not in results["train"]["anderson"]["statistics"]


def test_torchdeq_that_is_missing():
    message = measured("solvers", "torchdeq", peer_python="/nowhere/python")
    assert "/nowhere/python cannot import torch and torchdeq" in message


class _Peer:
    """A worker that does nothing."""

    def __init__(self):
        self.requests = []

    def __call__(self, name, request):
        self.requests.append((name, request))

    def processor_ticks(self):
        return 0


@pytest.mark.slow
def test_a_peer_does_the_same_work_in_turns():
    peer, work = _Peer(), {"name": "tiny_mlp", "path": "arrays.npz"}
    workload = workloads.build("tiny_mlp", **TINY)
    ratios = solvers.in_turns(workload, peer, work, (2,), 3, EFFORT)
    assert ratios["train"]["unrolled"]["numerator"].rounds == 2
    # A call before the first round compiles.
    assert peer.requests[:3] == 3 * [("torchdeq_peer.evaluate", work)]
    for solver in costs.SOLVERS:
        assert ratios["solve"][solver]["NFE 2"].median > 1
        for function, budget in (("solve", 2), ("step", 3)):
            request = {**work, "solver": solver, "budget": budget}
            assert peer.requests.count((f"torchdeq_peer.{function}", request)) == 3


def test_torchdeq():
    pytest.importorskip("torchdeq")
    options = {"budgets": (6,), "step_budget": 4, "memory_budgets": (6,), **TINY}
    results = measured("solvers", "torchdeq", names=["tiny_mlp"], **options)["tiny_mlp"]
    assert results["evaluate"]["median"] > 0
    for name in costs.SOLVERS:
        assert results["solve"][name]["NFE 6"]["median"] > 0
        assert results["train"][name]["denominator"]["median"] > 0


@pytest.mark.slow
def test_compaction():
    results = measured(
        "compaction",
        "solves",
        names=["transformer_layer, long tail"],
        solvers=["anderson"],
        inner=16,
        sizes={"batch": 8, "length": 4, "width": 8, "inner": 16},
    )
    (cost,) = results.values()
    assert cost["time"]["median"] > 0
    assert 1.0 <= cost["rows"] < cost["masked_rows"]
    assert cost["median_evaluations"] < cost["most_evaluations"]


@pytest.mark.parametrize(
    "name", ["dense", pytest.param("multiscale", marks=pytest.mark.slow)]
)
def test_splittings(name):
    cost = measured("splittings", name, batch=2, num_evaluations=3)
    assert cost["lower_quartile"] <= cost["median"] <= cost["upper_quartile"]


@pytest.mark.slow
def test_options():
    sizes = {"batch": 2, "length": 4, "width": 8, "inner": 16}
    results = measured(
        "options", "calls", names=["transformer_layer"], sizes=sizes, inner=16, budget=4
    )
    (costs,) = results.values()
    assert all(cost["median"] > 0 for cost in costs.values())


def test_gradients():
    results = measured("gradients", "time", names=["tiny_mlp"], num_steps=2)
    assert results["tiny_mlp, plain"]["median"] > 0
    assert results["tiny_mlp, remat"]["median"] > 0


@pytest.mark.slow
def test_gradients_of_solves():
    results = measured("gradients", "solve_time", names=["tiny_mlp"], num_evaluations=4)
    assert len(results) == 3
    assert all(ratio["median"] > 0 for ratio in results.values())


@pytest.mark.slow
def test_memory_of_gradients_of_solves():
    """A tenfold budget needs little more memory, while the control grows."""
    sizes = {"batch": 8, "length": 256, "width": 64, "inner": 256}
    growth = measured(
        "gradients",
        "solve_memory",
        names=["transformer_layer"],
        sizes=sizes,
        inner=256,
    )
    if growth != costs.NOT_MEASURABLE:
        ratios = {name: found["ratio"] for name, found in growth.items()}
        assert ratios["transformer_layer, unrolled"] > 4.0
        assert ratios["transformer_layer, reversible, beta 0.5"] <= 1.3
        assert ratios["transformer_layer, reversible, beta 0.8"] <= 1.4
        most = {name: found["mib"]["60"] for name, found in growth.items()}
        unrolled = most["transformer_layer, unrolled"]
        assert most["transformer_layer, checkpoints"] < 0.25 * unrolled


@pytest.mark.slow
def test_memory_of_gradients():
    sizes = {"batch": 8, "length": 64, "width": 256, "inner": 256}
    small = {"names": ["transformer_layer"], "num_steps": (2, 6), "inner": 256}
    growth = measured("gradients", "memory", sizes=sizes, **small)
    if growth != costs.NOT_MEASURABLE:
        plain = growth["transformer_layer, plain"]["states_per_step"]
        remat = growth["transformer_layer, remat"]["states_per_step"]
        assert remat < 2.0 < plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "regimes"),
    [
        ("dense", tuple(REGIMES)),
        ("convolutional", tuple(REGIMES)),
        ("mdeq", ("float32", "mixed_float16")),
        ("mdeq", ("float32", "mixed_bfloat16, XLA")),
        ("transformer", ("float32", "mixed_float16")),
        ("transformer", ("float32", "mixed_bfloat16, XLA")),
        ("trellisnet", ("float32", "mixed_bfloat16", "float32, XLA")),
    ],
)
def test_half_precision(name, regimes):
    results = measured("half_precision", name, regimes=regimes)
    assert set(results) == set(regimes)
    for regime, result in results.items():
        skips = regime == "mixed_float16"
        # Some of the four steps find the scale, and do not change the model.
        assert result["skipped"] < (4 if skips else 1), regime
        assert result["loss_difference"] < (0.3 if skips else 0.05), regime
        assert result["step_ms"]["median"] > 0
        assert min(result["parts_ms"].values()) >= 0
        assert ("amdahl" in result) == (regime == regimes[0])
    assert results[regimes[0]]["speedup"]["median"] == 1.0
    amdahl = results[regimes[0]]["amdahl"]
    assert 0.0 < amdahl["products"]["median"] < 1.0
    assert 1.0 < amdahl["speedup"]["median"] < 2.0


def test_products_of_a_profile():
    """Overlapping products of several threads count once, and only in their step."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add()
    names = ["training_step", "deq/dense/MatMul:_MklMatMul", "MatMul:Mul", "Conv2D"]
    for number, name in enumerate(names):
        plane.event_metadata[number].name = name
    events = {
        # Begin of a thread in ns, and (name, offset, duration) in ps.
        1: [(0, 1000, 100), (0, 2000, 50)],
        2: [(1, 10, 20), (1, 20, 30), (2, 0, 100)],
        0: [(3, 1000, 10), (3, 2035, 10), (3, 2090, 50), (1, 3180, 5)],
    }
    for begin, found in events.items():
        line = plane.lines.add(timestamp_ns=begin)
        for name, offset, duration in found:
            line.events.add(metadata_id=name, offset_ps=offset, duration_ps=duration)
    steps, products = half_precision._spans(space.planes)
    assert steps == [(2000, 2100), (3000, 3050)]
    assert len(products) == 6
    # 10 to 50 (two threads), of which a third repeats a part, and 90 to 100.
    assert half_precision._covered(steps[0], products) == pytest.approx(0.5)
    assert half_precision._covered(steps[1], products) == 0.0


def test_launches_of_a_profile():
    """Kernels and copies to the host are those on the streams of a GPU."""
    space = xplane_pb2.XSpace()
    for device, lines in {
        "/device:GPU:0 H100": {
            "Stream #7(Compute)": ["gemm", "add", "gemm"],
            "Stream #9(MemcpyD2H)": ["MemcpyD2H", "MemcpyD2H"],
            "TensorFlow Ops": ["MatMul"],
        },
        "/host:CPU": {"Stream": ["MatMul"]},
    }.items():
        plane = space.planes.add(name=device)
        for name, events in lines.items():
            line = plane.lines.add(name=name)
            for event in events:
                number = len(plane.event_metadata)
                plane.event_metadata[number].name = event
                line.events.add(metadata_id=number)
    counts = solvers.launches_of(space.planes, num_evaluations=2)
    assert counts == {"kernels": 1.5, "copies_to_host": 1.0}


def test_launches_without_a_gpu():
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("This machine has a GPU.")
    assert measured("solvers", "launches", names=["tiny_mlp"]) == (
        "TensorFlow finds no GPU."
    )


CELLS = {"cell": {"units": 8, "num_heads": 2, "intermediate_dim": 16}}
CELLS = {"small": {**CELLS, "batch": 2, "length": 4}}
ARCHITECTURE = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 16}
SEGMENT = {"batch": 2, "length": 4}


@pytest.mark.slow
def test_times_of_a_language_model():
    small = {"cells": CELLS, "num_evaluations": 3}
    step = measured("language_model", "step", **small)["small"]
    assert step["median"] > 0
    assert step["statistics"]["deq_evaluations"] <= 3
    assert measured("language_model", "inject", **small)["small"]["median"] > 0
    model = {"vocabulary_size": 11, **ARCHITECTURE}
    small = {"prefixes": (4,), "num_new": 3, "model": model}
    token = measured("language_model", "generation", **small)["4"]
    assert token["solve_prefix_ms"] > 0


@pytest.mark.slow
def test_memory_of_a_language_model():
    chosen = {"DEQ": {"budget": 3}, "layers": {"explicit": {"num_layers": 2}}}
    small = {"chosen": chosen, "architecture": ARCHITECTURE, **SEGMENT}
    peaks = measured("language_model", "memory", **small)
    if peaks != costs.NOT_MEASURABLE:
        # Some allocators do not count tensors as small as these.
        assert peaks["DEQ"] >= 0 and peaks["layers"] >= 0


@pytest.mark.slow
@pytest.mark.skipif(resident_memory() is None, reason="resident memory is unknown")
def test_evaluation_of_a_language_model():
    architecture = {"vocabulary_size": 11, **ARCHITECTURE}
    small = {"architecture": architecture, **SEGMENT}
    results = measured("language_model", "evaluation", **small)
    assert results["peak_mib"] > 100
    # With six seeds, it was within 2 % of a uniform guess.
    assert results["perplexity"] == pytest.approx(11, rel=0.1)


@pytest.mark.slow
def test_step_of_a_multiscale_cell():
    cells = {"small": {"filters": (8, 16), "expansion": 2}}
    small = {"cells": cells, "num_evaluations": 3, "batch": 2, "side": 4}
    step = measured("mdeq", "step", **small)["small"]
    assert step["median"] > 0
    assert step["statistics"]["deq_evaluations"] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["time", "memory"])
def test_multiscale_models(name):
    chosen = {
        "MDEQ": {"preset": "mdeq_tiny_cifar10", "budget": 2},
        "ResNet": {"network": "resnet_18", "upsampling": 4},
    }
    results = measured("mdeq", name, chosen=chosen, batch=2, side=16)
    if name == "time":
        assert results["MDEQ"]["median"] > 0 and results["ResNet"]["median"] > 0
    elif results != costs.NOT_MEASURABLE:
        # The gradients of a ResNet are large; tensors of a small MDEQ may not count.
        assert results["MDEQ"] >= 0 and results["ResNet"] > 0


@pytest.mark.slow
def test_distribution():
    overrides = [
        "data.train_examples=64",
        "data.batch_size=8",
        "model.stem.filters=4",
        "model.cell.filters=4",
        "model.solver.max_iter=2",
    ]
    cost = measured("distribution", "mirrored", num_steps=1, overrides=overrides)
    assert cost["throughput"] == pytest.approx(1 / cost["time"]["median"])
    assert cost["time"]["numerator"]["rounds"] == 2


@pytest.mark.slow
def test_tensorboard():
    cost = measured("tensorboard", "digits", steps=3)
    assert cost["pairs"] == 2 and cost["steps"] == 3
    assert cost["lower_quartile"] <= cost["median"] <= cost["upper_quartile"]
    assert cost["step_ms"] > 0


@pytest.fixture
def config_file(tmp_path, small):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(small))
    return str(path)


def test_input_pipeline(config_file, tmp_path, capsys):
    out = tmp_path / "results.json"
    arguments = ["--config", config_file, "--set", "data.batch_size=7"]
    arguments += ["--batches", "25", "--out", str(out)]
    assert main(["benchmark", "input_pipeline", *arguments]) == 0
    results = json.loads(out.read_text())["input"]
    rate = results["images_per_second"]
    assert 0 < rate["lower_quartile"] <= rate["median"] <= rate["upper_quartile"]
    assert results["data"]["batch_size"] == 7
    assert results["rounds"] * results["batches_per_round"] == 30
    assert results["image_shape"] == [8, 8, 1]
    assert "input, images_per_second" in capsys.readouterr().out


def test_input_pipeline_is_for_images_only(capsys):
    config = "synthetic/jacobian"
    assert main(["benchmark", "input_pipeline", "--config", config]) == 2
    assert "Received: experiment='synthetic'" in capsys.readouterr().err


def test_input_pipeline_without_data(config_file, capsys):
    override = "data={name: imagenette, directory: /nowhere}"
    arguments = ["--config", config_file, "--set", override]
    assert main(["benchmark", "input_pipeline", *arguments]) == 2
    assert "/nowhere does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_serving():
    seconds = measured("serving", "exports", formats=("saved_model",))
    assert set(seconds) == {"saved_model"} and seconds["saved_model"] > 0
    for cost in measured("serving", "signatures").values():
        sides = [cost[side]["median"] for side in ("numerator", "denominator")]
        assert cost["overhead_ms"] == sides[0] - sides[1]


def test_images_move_to_and_fro():
    image = np.zeros((1, 5, 5, 1), "float32")
    image[0, 2, 2] = 1.0
    columns = [
        float((frame[0].sum(axis=(0, 2)) * np.arange(5)).sum())
        for frame in moving(image, 0.5, 9)
    ]
    steps = np.abs(np.diff(columns))
    np.testing.assert_allclose(steps, 0.5, atol=1e-5)
    assert (min(columns), max(columns)) == pytest.approx((1, 3), abs=1e-5)
    assert columns[0] == columns[-1] == 2


@pytest.mark.slow
def test_warm_starts(finished_run, tmp_path):
    out = tmp_path / "results.json"
    run = [str(finished_run.path), "--variant", "equilibrium", "--out", str(out)]
    command = ["benchmark", "warm_starts", *run, "--frames", "3", "--speeds", "0"]
    assert main([*command, "0.5"]) == 0
    speeds = json.loads(out.read_text())["warm_starts"]
    assert list(speeds) == ["0 pixels", "0.5 pixels"]
    # Its budget is too small for an equilibrium.
    assert all(row["warm"] == row["cold"] == 4 for row in speeds.values())
    assert all(row["converged"] == 0 for row in speeds.values())
