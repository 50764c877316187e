"""Figures and animations of how a model solves problems by evaluation."""

from .accuracy import AccuracyCurve, plot_accuracy
from .board import animate_board, draw_board
from .maze import animate_maze

__all__ = [
    "AccuracyCurve",
    "animate_board",
    "animate_maze",
    "draw_board",
    "plot_accuracy",
]
