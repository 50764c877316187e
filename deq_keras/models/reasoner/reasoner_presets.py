"""Trained models."""

from deq_keras.models.kerashub import trained_preset

PRESETS = {
    "mazes": trained_preset(
        "Paths through mazes, 31 thousand parameters, trained on mazes of 9 x 9.",
    ),
    "prefix_sums": trained_preset(
        "Parities of all prefixes of a string, trained on strings of 32 bits.",
    ),
    "sudoku_6x6": trained_preset("Sudoku of 6 x 6 cells."),
}
