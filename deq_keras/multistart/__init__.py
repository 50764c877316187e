"""Solve each sample from several initial states and select one result."""

from deq_keras.multistart.rows import chosen_rows, repeat_rows
from deq_keras.multistart.selection import SelectedSolution, Selection
from deq_keras.multistart.solve import multistart_states, solve

__all__ = [
    "SelectedSolution",
    "Selection",
    "chosen_rows",
    "multistart_states",
    "repeat_rows",
    "solve",
]
