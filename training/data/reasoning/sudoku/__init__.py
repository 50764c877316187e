"""Sudoku of 4 x 4 and of 6 x 6 cells, each with one solution."""

from .task import Sudoku
from .text_file import read_puzzles

__all__ = ["Sudoku", "read_puzzles"]
