"""Two replicas train as one device does."""

import numpy as np
import pytest

from tests import harness
from tests.training.runs import small_runs
from tests.training.runs.small_runs import assert_same_checkpoints, checkpoint

pytestmark = pytest.mark.slow

# Logical devices must exist before TensorFlow starts, hence a process of its own.
PROGRAM = """
import copy
import pathlib
import sys

from tests.training.conftest import SMALL as CLASSIFICATION
from tests.training.experiments.small_texts import SMALL as LANGUAGE
from tests.training.experiments.test_mdeq_segmentation import SMALL as SEGMENTATION
from training.config import reading as configs
from training.runs import distribution, variants
from training.runs.callbacks import EpochRecorder
from training.runs.train import check, train
from training.runs.work_directory import WorkDirectory

# Not periodic: the streams of the replicas differ, and so do their memories.
pathlib.Path("text.txt").write_text(" or ".join(map(str, range(160))))
LANGUAGE["data"]["path"] = "text.txt"
two = distribution.start(configs.resolve({
    **CLASSIFICATION, "distribution": {"strategy": "mirrored", "logical_cpus": 2}
}).distribution)
one = distribution.OneDevice()
steps = EpochRecorder.on_train_batch_end


def run(name, mapping, devices, die_in=None, **changes):
    changes["tensorboard"] = True
    config = configs.resolve(copy.deepcopy(mapping), changes.items())
    directory = WorkDirectory(pathlib.Path(name), config)
    (job,) = variants.make_jobs(directory, distribution=devices).values()
    check(job)

    def step(recorder, batch, logs=None):
        if len(recorder.history) == die_in and batch == 1:
            raise KeyboardInterrupt
        steps(recorder, batch, logs)

    EpochRecorder.on_train_batch_end = step
    train(job, directory.run("model"))


# Other penalties draw noise for the samples of a replica.
still = {
    "model.cell.dropout_rate": 0.0, "model.head.dropout_rate": 0.0,
    "model.regularizer": "residual", "model.gradient": "implicit",
    "data.train_examples": 64, "data.test_examples": 39,
    "optimizer.clip_norm": 0.3, "optimizer.learning_rate": 0.03,
    "phases": [{"epochs": 1, "gradient": "unrolled"}, {"epochs": 1}],
}
# Its implicit gradients, far from an equilibrium, would amplify rounding.
flat = {
    "model.dropout": 0.0, "model.regularizer": "residual", "model.gradient": "unrolled",
    "data.validation_examples": None, "data.augmentation": {},
    "data.evaluation_batch_size": 4,
    "phases": [{"epochs": 2}], "optimizer.name": "sgd",
    "ohem": {"threshold": 0.3, "keep": 100},
}
language = {"model.regularizer": None, "data.evaluation_batch_size": 4}
cases = {
    "language": (LANGUAGE, language),
    "segmentation": (SEGMENTATION, flat),
    "classification": (CLASSIFICATION, still),
}
case = sys.argv[1]
if case in cases:
    mapping, changes = cases[case]
    for label, devices in (("one", one), ("two", two)):
        run(label, mapping, devices, **changes)
else:
    random = {
        "model.regularizer": {
            "class_name": "jacobian", "probability": 0.5,
        },
        "phases": [
            {"epochs": 1, "regularizer": "contraction", "max_iter_jitter": 2},
            {"epochs": 2},
        ],
    }
    run("whole", CLASSIFICATION, two, **random)
    try:
        run("parts", CLASSIFICATION, two, 2, **random)
    except KeyboardInterrupt:
        run("parts", CLASSIFICATION, two, **random)
"""

TOLERANCES = {
    # Derivatives where units switch, far from an equilibrium, amplify rounding.
    "deq_jacobian_norm": 1e-3,
    "deq_spectral_radius": 1e-3,
    "deq_adjoint_residual": 1e-4,
    # A product with a residual, the difference of two almost equal states.
    "deq_loss_error": 1e-3,
    # Each replica estimates the growth of its own residuals.
    "deq_gradient_error": 0.1,
}


def run(case, folder):
    """Runs `PROGRAM` in a folder for one of its cases, or for random draws."""
    harness.run_in_clean_process(
        PROGRAM, case, folder=folder, has_library=True, timeout=1800
    )


def history(folder):
    return [
        {name: float(value or "nan") for name, value in row.items() if name != "phase"}
        for row in small_runs.history(folder / "model")
    ]


def is_of_training(name):
    return not any(
        word in name for word in ("seed_generator", "total", "count", "sums")
    )


@pytest.mark.parametrize("name", ["classification", "segmentation", "language"])
def test_weights_and_logs_equal_one_device(name, tmp_path):
    run(name, tmp_path)
    one, two = tmp_path / "one", tmp_path / "two"
    for row, other in zip(history(one), history(two), strict=True):
        assert row.keys() == other.keys()
        for column in row.keys() - {"seconds", "data_wait"}:
            tol = TOLERANCES.get(column, 1e-5)
            np.testing.assert_allclose(
                other[column], row[column], tol, tol, err_msg=column
            )
    before, after = (checkpoint(path / "model") for path in (one, two))
    assert before.keys() == after.keys()
    for weight in filter(is_of_training, before):
        np.testing.assert_allclose(
            after[weight], before[weight], 1e-5, 1e-5, err_msg=weight
        )


def test_resumed_run_equals_uninterrupted(tmp_path):
    run("random", tmp_path)
    assert_same_checkpoints(tmp_path / "parts" / "model", tmp_path / "whole" / "model")
    rows = history(tmp_path / "whole")
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(row["deq_penalty"] > 0 for row in rows)
