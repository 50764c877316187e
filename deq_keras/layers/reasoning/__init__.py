"""Cells for reasoning tasks, which receive the problem in every evaluation."""

from deq_keras.layers.reasoning.board_cell import BoardCell
from deq_keras.layers.reasoning.board_embedding import BoardEmbedding
from deq_keras.layers.reasoning.convolutional_cells import AutomatonCell, RecallCell
from deq_keras.layers.reasoning.graph_cell import GraphCell
from deq_keras.layers.reasoning.token_cell import AttentionCell, MixerCell

__all__ = [
    "AttentionCell",
    "AutomatonCell",
    "BoardCell",
    "BoardEmbedding",
    "GraphCell",
    "MixerCell",
    "RecallCell",
]
