"""Generates the minimal puzzles that ship, `training/data/reasoning/sudoku_*.npz`.

    PYTHONPATH=. python tools/make_sudoku_puzzles.py

The 2000 puzzles of a board follow from the seed 0 and take up to ten seconds.
"""

from pathlib import Path

import numpy as np

from training.data.reasoning.sudoku_boards import BOARDS, Puzzles, solve

FOLDER = Path(__file__).parents[1] / "training" / "data" / "reasoning"
_NUM_PUZZLES = 2000
_SEED = 0


def main(folder=FOLDER, count=_NUM_PUZZLES):
    """Writes the files `sudoku_4x4.npz` and `sudoku_6x6.npz`."""
    for side in (4, 6):
        generator = np.random.default_rng(_SEED)
        puzzles = minimal_puzzles(generator, BOARDS[side], count)
        file = Path(folder) / f"sudoku_{side}x{side}.npz"
        np.savez_compressed(file, givens=puzzles.givens, solutions=puzzles.solutions)


def minimal_puzzles(generator, board, count):
    """Draws minimal `Puzzles`: each digit is needed for a unique solution.

    The solution is found by trying digits in random order. Its digits are then removed
    in random order unless they are needed.
    """

    def shuffle(digits):
        return generator.permutation(digits).tolist()

    empty = [0] * board.num_cells
    solutions = [
        solve(board, empty, limit=1, order=shuffle).solutions[0] for _ in range(count)
    ]
    givens = []
    for solution in solutions:
        puzzle = list(solution)
        for cell in generator.permutation(board.num_cells):
            if not _is_needed(board, puzzle, cell):
                puzzle[cell] = 0
        givens.append(puzzle)
    return Puzzles(np.array(givens, "uint8"), np.array(solutions, "uint8"))


def _is_needed(board, puzzle, cell):
    """Returns whether a puzzle with one solution has more without a cell's digit."""
    others = list(puzzle)
    for digit in range(1, board.side + 1):
        others[cell] = digit
        if digit != puzzle[cell] and solve(board, others, limit=1).solutions:
            return True
    return False


if __name__ == "__main__":
    main()
