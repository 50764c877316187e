"""The command `deq-keras`. It validates input before it imports TensorFlow."""

from .command_line import main, parser

__all__ = ["main", "parser"]
