"""Every stream of batches is read ahead without the autotuner."""

import numpy as np
import pytest

from training.config import reading as configs
from training.data import pipeline, reasoning
from training.data.reasoning.dataset import training_dataset
from training.data.text.segments import segments
from training.experiments.classification.job import ClassificationJob


def check(dataset):
    # A dataset has the options of the datasets that it reads.
    assert dataset.map(lambda *batch: batch).options().autotune.enabled is False


@pytest.mark.parametrize(
    "make",
    [
        lambda: pipeline.array_batches((np.arange(4),), 2, 0, range(3)),
        lambda: segments(np.arange(20), 2, 4),
        lambda: training_dataset(reasoning.Mazes(), [5], 2, 0, range(3)),
    ],
    ids=["arrays", "segments", "reasoning"],
)
def test_streams_have_no_autotuner(make):
    check(make())


@pytest.mark.parametrize("use", ["x", "validation_data"])
def test_streams_of_fit_have_no_autotuner(small, use):
    job = ClassificationJob(configs.resolve(small))
    check(job.feed.fit_arguments(range(1))[use])
