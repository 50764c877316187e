"""Puzzles: of one solution each, whatever is done to them; and those of users."""

import itertools
import pathlib
import runpy

import numpy as np
import pytest

from training.data.reasoning import Sudoku, read_puzzles, sudoku_boards
from training.data.reasoning.sudoku_boards import Puzzles, find_board, solve
from training.errors import InputError

SIDES = (4, 6)
BOXES = {4: (2, 2), 6: (2, 3)}
BOARDS = {side: find_board(side) for side in SIDES}


@pytest.fixture(scope="module")
def minimal():
    """Minimal puzzles of both boards."""
    return {
        side: Puzzles(*(grids[:60] for grids in Sudoku(side).puzzles[:2]))
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
def test_no_digit_of_a_minimal_puzzle_can_go(minimal, side):
    for givens in minimal[side].givens[:20]:
        for cell in np.flatnonzero(givens):
            without = givens.copy()
            without[cell] = 0
            assert len(solve(BOARDS[side], without).solutions) == 2


@pytest.mark.parametrize("side", SIDES)
def test_further_givens_are_of_the_solution(minimal, side):
    before = minimal[side]
    after = sudoku_boards.with_further_givens(np.random.default_rng(0), before, 3)
    added = (after.givens > 0) & (before.givens == 0)
    assert set(added.sum(axis=1)) == {3}
    np.testing.assert_array_equal(after.givens[added], after.solutions[added])
    kept = before.givens > 0
    np.testing.assert_array_equal(after.givens[kept], before.givens[kept])


@pytest.mark.parametrize("side", SIDES)
def test_symmetries_keep_the_only_solution(minimal, side):
    board, generator = BOARDS[side], np.random.default_rng(0)
    givens, solutions = sudoku_boards.transformed(generator, board, *minimal[side][:2])
    assert np.any(givens != minimal[side].givens)
    for puzzle, solution in zip(givens, solutions, strict=True):
        assert is_solution(solution, side)
        assert solve(board, puzzle).solutions == [solution.tolist()]
    for grids, images in zip(minimal[side][:2], (givens, solutions), strict=True):
        for grid, image in zip(grids[:10], images[:10].astype("uint8"), strict=True):
            assert sudoku_boards.orbit(board, bytes(grid)) == sudoku_boards.orbit(
                board, bytes(image)
            )


def test_symmetries_are_drawn_from_the_whole_group(all_grids):
    generator = np.random.default_rng(0)
    sizes = set()
    for grid in all_grids[:20]:
        grids = np.tile(grid, (2000, 1))
        (images,) = sudoku_boards.transformed(generator, BOARDS[4], grids)
        sizes.add(len(np.unique(images, axis=0)))
    assert sizes == {96, 192}


def test_there_are_49_grids_of_6_by_6_up_to_symmetries():
    generator = np.random.default_rng(0)

    def shuffled(digits):
        return generator.permutation(digits).tolist()

    found = {
        sudoku_boards.orbit(
            BOARDS[6], bytes(solve(BOARDS[6], [0] * 36, 1, shuffled)[0][0])
        )
        for _ in range(500)
    }
    assert 40 < len(found) <= 49


def test_guesses():
    # Every cell has but one digit left in its turn.
    assert solve(BOARDS[4], [1, 2, 3, 0, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]) == (
        [[1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]],
        0,
    )
    assert solve(BOARDS[4], [0] * 16).guesses > 0
    contradiction = solve(BOARDS[4], [1, 1] + [0] * 14)
    assert contradiction == ([], 0)


@pytest.fixture(scope="module")
def task(minimal):
    tasks = {side: Sudoku(side) for side in SIDES}
    for side in SIDES:
        tasks[side].puzzles = minimal[side]
    return tasks


class TestTask:
    @pytest.mark.parametrize("held_out", [False, True])
    @pytest.mark.parametrize("side", SIDES)
    def test_targets_solve_the_inputs(self, task, side, held_out):
        generator = np.random.default_rng(0)
        drawn = task[side].examples(generator, 30, 2, held_out)
        givens = drawn.inputs.reshape(30, -1)
        solutions = drawn.targets.reshape(30, -1) + 1
        for puzzle, solution in zip(givens, solutions, strict=True):
            assert solve(BOARDS[side], puzzle).solutions == [solution.tolist()]
        assert np.all(drawn.weights == 1.0) and set(drawn.distance) == {2}

    def test_level_is_how_many_more_digits_are_given(self, task):
        generator = np.random.default_rng(0)
        means = [
            (task[6].examples(generator, 100, level).inputs > 0).sum() / 100
            for level in (0, 5)
        ]
        assert 8 < means[0] < 12
        assert means[1] - means[0] == pytest.approx(5, abs=0.5)

    @pytest.mark.parametrize("side", SIDES)
    def test_no_symmetry_turns_training_into_held_out(self, task, side):
        def orbits(held_out):
            drawn = task[side].examples(np.random.default_rng(0), 60, 1, held_out)
            grids = drawn.targets + 1 if side == 6 else drawn.inputs
            grids = grids.reshape(60, -1).astype("uint8")
            return {sudoku_boards.orbit(BOARDS[side], bytes(grid)) for grid in grids}

        assert orbits(False) and orbits(True)
        assert not orbits(False) & orbits(True)

    def test_hard_puzzles_of_6_by_6_take_guesses(self, task):
        generator = np.random.default_rng(0)
        hard = task[6].examples(generator, 200, 0).difficulty
        easy = task[6].examples(generator, 200, 6).difficulty
        assert 0.15 < np.mean(hard > 0) < 0.65 and np.mean(easy > 0) < 0.05
        assert not task[4].examples(generator, 200, 0).difficulty.any()

    def test_boards_have_4_or_6_cells_a_side(self, tmp_path):
        for make in (Sudoku, lambda side: read_puzzles(tmp_path / "none", side)):
            with pytest.raises(InputError, match="must be 4 or 6.*side=9"):
                make(9)
        assert [Sudoku(side).box_shape for side in SIDES] == [(2, 2), (2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_every_level_has_both_splits_and_one_solution(side):
    """Of as many puzzles as experiments draw from."""
    whole, generator = Sudoku(side), np.random.default_rng(0)
    levels = whole.levels
    for level in range(levels.minimum, levels.maximum + 1):
        for held_out in (False, True):
            drawn = whole.examples(generator, 20, level, held_out)
            puzzles_drawn = drawn.inputs.reshape(20, -1)
            assert np.all((puzzles_drawn == 0).sum(axis=1) > 0)
            solutions = drawn.targets.reshape(20, -1) + 1
            for puzzle, solution in zip(puzzles_drawn, solutions, strict=True):
                found = solve(BOARDS[side], puzzle, order=lambda digits: digits[::-1])
                assert found.solutions == [solution.tolist()]


@pytest.mark.parametrize("count", [5, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_script_generates_the_shipped_puzzles(tmp_path, count):
    script = pathlib.Path(__file__).parents[4] / "docs" / "make_sudoku_puzzles.py"
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


def test_drawn_puzzles_are_read_as_they_were(read, minimal):
    givens, solutions = (grids[:5] for grids in minimal[6][:2])
    lines = ["".join(".123456"[digit] for digit in puzzle) for puzzle in givens]
    examples = read("\n".join(lines), 6)
    np.testing.assert_array_equal(examples.targets.reshape(5, -1) + 1, solutions)
    guesses = [solve(BOARDS[6], puzzle).guesses for puzzle in givens]
    assert examples.difficulty.tolist() == guesses


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (SOLUTION[:-1], "16 characters in line 2 of .*puzzles.txt.*Received: 15"),
        (SOLUTION + ".", "Received: 17"),
        (SOLUTION[:-1] + "5", "digits 1 to 4 and dots. Received: 16, '.*5'"),
        (SOLUTION[:-1] + "0", "digits 1 to 4 and dots"),
        (SOLUTION[:-1] + " ", "digits 1 to 4 and dots"),
        ("." * 16, "in line 2 .*Received: an empty board"),
        ("1..1" + "." * 12, "in a row, in line 2 .*: 1 as characters 1 and 4"),
        ("2..." * 2 + "." * 8, "in a column, .*: 2 as characters 1 and 5"),
        (".3..3" + "." * 11, "in a box, .*: 3 as characters 2 and 5"),
        ("12.....3...4....", "one solution in line 2 .*: none"),
        ("1" + "." * 15, "one solution in line 2 of .*: two or more"),
    ],
)
def test_puzzles_that_cannot_be_used(read, line, words):
    with pytest.raises(InputError, match=words):
        read(f"{SOLUTION}\n{line}\n")


def test_file_without_puzzles(read):
    with pytest.raises(InputError, match="Expected text in .*puzzles.txt"):
        read("\n\n")
