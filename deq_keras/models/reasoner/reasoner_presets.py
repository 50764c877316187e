"""Trained models, and architectures of a size that two processor cores train."""

import functools

import keras

from deq_keras.gradients import TruncatedGradient
from deq_keras.layers import (
    AttentionCell,
    AutomatonCell,
    BoardCell,
    BoardEmbedding,
    MixerCell,
    RecallCell,
)
from deq_keras.models.kerashub import architecture, trained
from deq_keras.solvers import FixedPointIteration


def _strings(dtype):
    return {
        "cell": RecallCell(48, rank=1, dtype=dtype, name="cell"),
        "encoder": keras.layers.Rescaling(1.0, -0.5, dtype=dtype, name="center"),
        "input_size": (None, 1),
    }


def _mazes(dtype):
    return {
        "cell": RecallCell(32, dtype=dtype, name="cell"),
        "input_size": (None, None, 3),
        "gradient": TruncatedGradient(
            "uniform", "uniform", max_steps=24, free_fraction=1.0
        ),
    }


def _large_mazes(dtype):
    return {
        "cell": AutomatonCell(48, dtype=dtype, name="cell"),
        "input_size": (None, None, 3),
        # Trained with whole steps, solved with half steps, which converge where whole
        # steps oscillate.
        "solver": FixedPointIteration(
            max_iter=640, tol=1e-3, stop_mode="rel_max", damping=0.5
        ),
        "gradient": TruncatedGradient(
            "uniform", "uniform", max_steps=24, free_fraction=1.0, damping=1.0
        ),
    }


def _sudoku(cell_class, units, side, box_shape):
    def arguments(dtype):
        board = (side, side)
        return {
            "cell": cell_class(units, dtype=dtype, name="cell"),
            "encoder": BoardEmbedding(
                side + 1, units, board, box_shape, dtype=dtype, name="embedding"
            ),
            "input_size": board,
            "problem_dtype": "int32",
        }

    return arguments


PRESETS = {
    "mazes": trained(
        "Paths through mazes, 31 thousand parameters, trained on mazes of 9 x 9.",
    ),
    "prefix_sums": trained(
        "Parities of all prefixes of a string, trained on strings of 32 bits.",
    ),
    "sudoku_6x6": trained("Sudoku of 6 x 6 cells."),
    "reasoner_recall_prefix_sums": architecture(
        "Convolutions of 48 channels over strings, 35 thousand parameters, for the "
        "parities of all prefixes.",
        _strings,
        {"num_classes": 2},
    ),
    "reasoner_recall_mazes": architecture(
        "Convolutions of 32 channels over images, 47 thousand parameters, for the "
        "paths through mazes.",
        _mazes,
        {"num_classes": 2},
    ),
    "reasoner_automaton_mazes": architecture(
        "An automaton of 48 channels over images, 31 thousand parameters, for the "
        "paths through large mazes.",
        _large_mazes,
        {"num_classes": 2},
    ),
    "reasoner_board_sudoku_6x6": architecture(
        "64 features of each square, that hears of its row, its column and its box.",
        _sudoku(functools.partial(BoardCell, box_shape=(2, 3)), 64, 6, (2, 3)),
        {"num_classes": 6},
    ),
    "reasoner_mixer_sudoku_4x4": architecture(
        "Two blocks of 64 features that mix the 16 squares.",
        _sudoku(MixerCell, 64, 4, (2, 2)),
        {"num_classes": 4},
    ),
    "reasoner_mixer_sudoku_6x6": architecture(
        "Two blocks of 96 features that mix the 36 squares.",
        _sudoku(MixerCell, 96, 6, (2, 3)),
        {"num_classes": 6},
    ),
    "reasoner_attention_sudoku_4x4": architecture(
        "Two blocks of 64 features and four heads that attend to the 16 squares.",
        _sudoku(AttentionCell, 64, 4, (2, 2)),
        {"num_classes": 4},
    ),
    "reasoner_attention_sudoku_6x6": architecture(
        "Two blocks of 64 features and four heads that attend to the 36 squares.",
        _sudoku(AttentionCell, 64, 6, (2, 3)),
        {"num_classes": 6},
    ),
}
