"""Puzzles have one solution, also after a symmetry; puzzles of a text file."""

import itertools
import pathlib
import runpy

import numpy as np
import pytest

from tests.regimes import slow
from training.data.reasoning import Sudoku, read_puzzles, sudoku_boards
from training.data.reasoning.sudoku_boards import BOARDS, Puzzles, solve

SIDES = (4, 6)
BOXES = {4: (2, 2), 6: (2, 3)}


@pytest.fixture(scope="module")
def minimal():
    """Minimal puzzles of both boards."""
    return {
        side: Puzzles(*(grids[:30] for grids in Sudoku(side).puzzles[:2]))
        for side in SIDES
    }


def is_solution(grid, side):
    """Whether a grid has all digits in all rows, columns and boxes."""
    height, width = BOXES[side]
    grid = np.reshape(grid, (side, side))
    boxes = grid.reshape(side // height, height, side // width, width)
    boxes = boxes.swapaxes(1, 2).reshape(side, side)
    every = np.arange(1, side + 1)
    return all(
        np.array_equal(np.sort(line), every) for line in [*grid, *grid.T, *boxes]
    )


@pytest.fixture(scope="module")
def all_grids():
    """All solutions of 4 x 4 cells: pairs of bands that fit."""
    rows = np.array(list(itertools.permutations(range(1, 5))))
    pairs = itertools.product(rows, rows)
    bands = [[*a, *b] for a, b in pairs if not set(a[:2]) & set(b[:2])]
    grids = [(*top, *bottom) for top, bottom in itertools.product(bands, bands)]
    columns = np.sort(np.reshape(grids, (-1, 4, 4)), axis=1)
    return np.array(grids)[np.all(columns == np.arange(1, 5)[:, None], axis=(1, 2))]


def test_there_are_288_grids_of_4_by_4(all_grids):
    assert len(all_grids) == 288
    found = solve(BOARDS[4], [0] * 16, limit=1000).solutions
    assert {tuple(grid) for grid in found} == {tuple(grid) for grid in all_grids}
    orbits = [sudoku_boards.orbit(BOARDS[4], bytes(grid)) for grid in found]
    sizes = sorted(orbits.count(orbit) for orbit in set(orbits))
    assert sizes == [96, 192]


def test_puzzles_have_one_solution(minimal, all_grids):
    for givens, solution in zip(*minimal[4][:2], strict=True):
        fits = np.all((givens == 0) | (givens == all_grids), axis=1)
        np.testing.assert_array_equal(all_grids[fits], [solution])
    for givens, solution in zip(*minimal[6][:2], strict=True):
        assert is_solution(solution, 6)
        found = solve(BOARDS[6], givens, order=lambda digits: digits[::-1])
        np.testing.assert_array_equal(found.solutions, [solution])


@pytest.mark.parametrize("side", SIDES)
def test_minimal_puzzles_need_every_digit(minimal, side):
    for givens in minimal[side].givens[:8]:
        for cell in np.flatnonzero(givens):
            without = givens.copy()
            without[cell] = 0
            assert len(solve(BOARDS[side], without).solutions) == 2


@pytest.mark.parametrize("side", SIDES)
def test_further_givens_come_from_the_solution(minimal, side):
    before = minimal[side]
    after = sudoku_boards.with_further_givens(np.random.default_rng(0), before, 3)
    added = (after.givens > 0) & (before.givens == 0)
    assert set(added.sum(axis=1)) == {3}
    np.testing.assert_array_equal(after.givens[added], after.solutions[added])
    kept = before.givens > 0
    np.testing.assert_array_equal(after.givens[kept], before.givens[kept])


@pytest.mark.parametrize("side", SIDES)
def test_symmetries_keep_the_solution(minimal, side):
    board, generator = BOARDS[side], np.random.default_rng(0)
    givens, solutions = sudoku_boards.transform(generator, board, *minimal[side][:2])
    assert np.any(givens != minimal[side].givens)
    for puzzle, solution in zip(givens, solutions, strict=True):
        assert is_solution(solution, side)
        assert solve(board, puzzle).solutions == [solution.tolist()]
    for grids, images in zip(minimal[side][:2], (givens, solutions), strict=True):
        for grid, image in zip(grids[:10], images[:10].astype("uint8"), strict=True):
            assert sudoku_boards.orbit(board, bytes(grid)) == sudoku_boards.orbit(
                board, bytes(image)
            )


def test_guesses():
    # Every cell has but one digit left in its turn.
    solution = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]
    assert solve(BOARDS[4], [*solution[:15], 0]) == ([solution], 0)
    assert solve(BOARDS[4], [0] * 16).guesses > 0
    assert solve(BOARDS[4], [1, 1] + [0] * 14) == ([], 0)


@pytest.fixture(scope="module")
def task(minimal):
    tasks = {side: Sudoku(side) for side in SIDES}
    for side in SIDES:
        tasks[side].puzzles = minimal[side]
    return tasks


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("side", SIDES)
def test_targets_solve_the_inputs(task, side, held_out):
    drawn = task[side].examples(np.random.default_rng(0), 10, 2, held_out)
    givens = drawn.inputs.reshape(10, -1)
    solutions = drawn.targets.reshape(10, -1) + 1
    for puzzle, solution in zip(givens, solutions, strict=True):
        assert solve(BOARDS[side], puzzle).solutions == [solution.tolist()]
    assert np.all(drawn.weights == 1.0) and set(drawn.distance) == {2}


@pytest.mark.parametrize("side", SIDES)
def test_no_symmetry_maps_training_to_held_out(task, side):
    def orbits(held_out):
        drawn = task[side].examples(np.random.default_rng(0), 60, 1, held_out)
        grids = drawn.targets + 1 if side == 6 else drawn.inputs
        grids = grids.reshape(60, -1).astype("uint8")
        return {sudoku_boards.orbit(BOARDS[side], bytes(grid)) for grid in grids}

    assert orbits(False) and orbits(True)
    assert not orbits(False) & orbits(True)


@pytest.mark.parametrize("count", [2, slow(2000)])
def test_script_generates_the_shipped_puzzles(tmp_path, count):
    script = pathlib.Path(__file__).parents[4] / "tools" / "make_sudoku_puzzles.py"
    runpy.run_path(str(script))["main"](tmp_path, count)
    for side in SIDES:
        givens, solutions, _ = Sudoku(side).puzzles
        with np.load(tmp_path / f"sudoku_{side}x{side}.npz") as generated:
            np.testing.assert_array_equal(generated["solutions"], solutions[:count])
            if count == len(givens):  # Givens are removed after all solutions.
                np.testing.assert_array_equal(generated["givens"], givens)


@pytest.fixture
def read(tmp_path):
    def read_text(text, side=4):
        (tmp_path / "puzzles.txt").write_text(text)
        return read_puzzles(tmp_path / "puzzles.txt", side)

    return read_text


SOLUTION = "1234341221434321"


def test_puzzles_of_a_file(read):
    examples = read("\n" + SOLUTION + "\r\n\n1..4.4..2......1\n")
    assert examples.inputs.shape == (2, 4, 4)
    solution = "".join(map(str, examples.targets[1].ravel() + 1))
    assert is_solution([int(digit) for digit in solution], 4)
    np.testing.assert_array_equal(examples.inputs[1, 0], [1, 0, 0, 4])
    assert examples.difficulty.dtype == np.int32


def test_drawn_puzzles_are_read_back(read, minimal):
    givens, solutions = (grids[:5] for grids in minimal[6][:2])
    lines = ["".join(".123456"[digit] for digit in puzzle) for puzzle in givens]
    examples = read("\n".join(lines), 6)
    np.testing.assert_array_equal(examples.targets.reshape(5, -1) + 1, solutions)
    guesses = [solve(BOARDS[6], puzzle).guesses for puzzle in givens]
    assert examples.difficulty.tolist() == guesses
