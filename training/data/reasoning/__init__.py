"""Generated tasks that take many steps of reasoning. Needs no TensorFlow."""

import functools

from .mazes import Mazes, read_mazes
from .sequences import Chains, PrefixSums, Words
from .sudoku import Sudoku, read_puzzles
from .task import (
    Examples,
    Levels,
    ReasoningTask,
    held_out_examples,
    in_even_batches,
    is_solved,
    least_evaluations,
    training_batches,
)

__all__ = [
    "TASKS",
    "Chains",
    "Examples",
    "Levels",
    "Mazes",
    "PrefixSums",
    "ReasoningTask",
    "Sudoku",
    "Words",
    "held_out_examples",
    "in_even_batches",
    "least_evaluations",
    "read_mazes",
    "read_puzzles",
    "is_solved",
    "training_batches",
]

# Constructors of the tasks by their names in configs.
TASKS = {
    "chains": Chains,
    "mazes": Mazes,
    "prefix_sums": PrefixSums,
    "sudoku_4x4": functools.partial(Sudoku, 4),
    "sudoku_6x6": functools.partial(Sudoku, 6),
    "words": Words,
}
