"""Training that goes on from the states of the update before."""

from deq_keras.models.carried_state.carried_state_model import CarriedStateModel
from deq_keras.models.carried_state.search_segment import SearchSegment

__all__ = ["CarriedStateModel", "SearchSegment"]
