"""Several searches of every sample from several states, one of which is chosen."""

from deq_keras.restarts.restart_states import starting_states
from deq_keras.restarts.rows import chosen_rows, repeat_rows
from deq_keras.restarts.selected_solution import SelectedSolution
from deq_keras.restarts.selection import Selection
from deq_keras.restarts.solve import solve

__all__ = [
    "SelectedSolution",
    "Selection",
    "chosen_rows",
    "repeat_rows",
    "solve",
    "starting_states",
]
