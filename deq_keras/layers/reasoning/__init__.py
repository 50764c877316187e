"""Cells for reasoning tasks, which receive the problem in every evaluation."""

from deq_keras.layers.reasoning.attention_cell import AttentionCell
from deq_keras.layers.reasoning.board_cell import BoardCell
from deq_keras.layers.reasoning.board_embedding import BoardEmbedding
from deq_keras.layers.reasoning.convolutional_cells import AutomatonCell, RecallCell
from deq_keras.layers.reasoning.mixer_cell import MixerCell

__all__ = [
    "AttentionCell",
    "AutomatonCell",
    "BoardCell",
    "BoardEmbedding",
    "MixerCell",
    "RecallCell",
]
