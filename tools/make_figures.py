"""Draws the figures of the main job from its finished work directory.

    deq-keras train configs/residual/digits.yaml
    PYTHONPATH=. python tools/make_figures.py runs/residual-digits

They go to docs/images.
"""

import os
import sys
from pathlib import Path

import matplotlib

from training import registry
from training.evaluation.plots import plot_residuals, plot_scores
from training.evaluation.report import measurements
from training.runs.work_directory import WorkDirectory

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main(work_directory, folder=IMAGES):
    """Writes `accuracy.svg` and `residuals.svg`.

    Args:
        work_directory: path of a finished run.
        folder: path of the folder to write to.
    """
    # The same figure is the same file.
    matplotlib.rcParams["svg.hashsalt"] = "deq_keras"
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    directory = WorkDirectory.open(work_directory)
    evaluations, diagnoses = measurements(directory)
    score = registry.find(directory.config.experiment).score
    plot_scores(Path(folder) / "accuracy.svg", evaluations, score)
    plot_residuals(Path(folder) / "residuals.svg", diagnoses)


if __name__ == "__main__":
    main(sys.argv[1])
