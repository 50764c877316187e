"""Mazes, and the paths through them."""

from .task import Mazes
from .text_file import read_mazes

__all__ = ["Mazes", "read_mazes"]
