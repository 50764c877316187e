"""The cells of the tasks, as a user would write them from Keras layers."""

from .attention_cell import AttentionCell
from .convolutional_cell import ConvolutionalCell
from .gated_cell import GatedCell
from .leaky_cell import LeakyCell
from .message_passing_cell import MessagePassingCell
from .normalized_cell import NormalizedCell

__all__ = [
    "AttentionCell",
    "ConvolutionalCell",
    "GatedCell",
    "LeakyCell",
    "MessagePassingCell",
    "NormalizedCell",
]
