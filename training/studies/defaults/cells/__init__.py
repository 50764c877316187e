"""The cells of the tasks, as a user would write them from Keras layers."""

from .attention_cell import AttentionCell
from .convolutional_cell import ConvolutionalCell
from .gated_cell import GatedCell
from .message_passing_cell import MessagePassingCell

__all__ = ["AttentionCell", "ConvolutionalCell", "GatedCell", "MessagePassingCell"]
