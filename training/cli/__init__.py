"""The command `deq-keras`. Without TensorFlow until input has been validated."""

from .command_line import main, parser

__all__ = ["main", "parser"]
