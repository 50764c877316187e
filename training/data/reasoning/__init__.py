"""Tasks that take many steps of thought, made up on the fly. Needs no TensorFlow."""

import functools

from .chains import Chains
from .mazes import Mazes, read_mazes
from .prefix_sums import PrefixSums
from .streams import held_out_examples, training_batches
from .sudoku import Sudoku, read_puzzles
from .task import Examples, Levels, ReasoningTask, least_evaluations, solved
from .words import Words

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
    "least_evaluations",
    "read_mazes",
    "read_puzzles",
    "solved",
    "training_batches",
]

# What makes each of them, by the names that configs say.
TASKS = {
    "chains": Chains,
    "mazes": Mazes,
    "prefix_sums": PrefixSums,
    "sudoku_4x4": functools.partial(Sudoku, 4),
    "sudoku_6x6": functools.partial(Sudoku, 6),
    "words": Words,
}
