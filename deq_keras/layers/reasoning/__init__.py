"""Cells for reasoning tasks, which receive the problem in every evaluation."""

from deq_keras.layers.reasoning.attention_cell import AttentionCell
from deq_keras.layers.reasoning.automaton_cell import AutomatonCell
from deq_keras.layers.reasoning.board_cell import BoardCell
from deq_keras.layers.reasoning.board_embedding import BoardEmbedding
from deq_keras.layers.reasoning.mixer_cell import MixerCell
from deq_keras.layers.reasoning.recall_cell import RecallCell

__all__ = [
    "AttentionCell",
    "AutomatonCell",
    "BoardCell",
    "BoardEmbedding",
    "MixerCell",
    "RecallCell",
]
