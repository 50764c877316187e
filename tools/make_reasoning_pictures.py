"""Draws how shipped presets solve a maze and a Sudoku, for docs/results/larger.md.

    PYTHONPATH=. python tools/make_reasoning_pictures.py

They go to docs/images. Run it after a change of the presets.
"""

import os
from pathlib import Path

import matplotlib
import numpy as np

from deq_keras.models import ReasonerTagger
from training.data.reasoning import Mazes, Sudoku
from training.experiments.reasoning import pictures

IMAGES = Path(__file__).parents[1] / "docs" / "images"
# This maze has a long path, and this Sudoku needs many evaluations.
_SEED = 2

# Name of a picture -> preset, task, level of its problem, evaluations to show.
PICTURES = {
    "maze_solving": ("mazes", Mazes(), 21, (8, 24, 48, 72, 96)),
    "sudoku_solving": ("sudoku_6x6", Sudoku(6), 0, (1, 4, 16, 24, 32)),
}


def main(folder=IMAGES):
    """Writes a picture `NAME.svg` for each name of `PICTURES`.

    Args:
        folder: Path of the folder to write to.
    """
    # The same picture is the same file.
    matplotlib.rcParams["svg.hashsalt"] = "deq_keras"
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    for name, (preset, task, level, evaluations) in PICTURES.items():
        model = ReasonerTagger.from_preset(preset)
        examples = task.examples(np.random.default_rng(_SEED), 1, level)
        frames = pictures.probabilities(model, examples.inputs, max(evaluations))
        path = Path(folder) / f"{name}.svg"
        pictures.draw_panels(path, task, examples, frames, evaluations)


if __name__ == "__main__":
    main()
