"""Several searches of every sample from several states, one of which is chosen."""

from deq_keras.restarts.restart_states import starting_states
from deq_keras.restarts.selected_solution import SelectedSolution
from deq_keras.restarts.selection import Selection

__all__ = ["SelectedSolution", "Selection", "starting_states"]
