"""Mazes are perfect and have one shortest path; mazes of a text file."""

import numpy as np
import pytest

from training.data.reasoning import Mazes, read_mazes

SIZES = (3, 9)


def parts(maze):
    """Corridors, start and goal of the inputs of one maze."""
    corridors = maze.any(axis=-1)
    (start,) = np.argwhere((maze == (0, 1, 0)).all(axis=-1)).tolist()
    (goal,) = np.argwhere((maze == (1, 0, 0)).all(axis=-1)).tolist()
    return corridors, tuple(start), tuple(goal)


def steps_from(corridors, place):
    """Steps to each pixel by waves over whole arrays; -1 where none leads."""
    steps = np.full(corridors.shape, -1)
    wave = np.zeros(corridors.shape, bool)
    wave[place] = True
    count = 0
    while wave.any():
        steps[wave] = count
        grown = np.zeros_like(wave)
        grown[1:] |= wave[:-1]
        grown[:-1] |= wave[1:]
        grown[:, 1:] |= wave[:, :-1]
        grown[:, :-1] |= wave[:, 1:]
        wave = grown & corridors & (steps < 0)
        count += 1
    return steps


@pytest.fixture(scope="module", params=SIZES)
def drawn(request):
    return Mazes().examples(np.random.default_rng(0), 20, request.param)


def test_mazes_are_perfect(drawn):
    for maze in drawn.inputs:
        corridors, start, _ = parts(maze)
        cells = corridors[1::2, 1::2]
        assert cells.all()
        assert not (corridors[::2, ::2].any() or corridors[[0, -1]].any())
        assert not corridors[:, [0, -1]].any()
        assert corridors.sum() == 2 * cells.size - 1  # A passage is one pixel.
        assert np.all(steps_from(corridors, start)[corridors] >= 0)


def test_paths_lead_from_start_to_goal(drawn):
    for maze, path, weights, steps in zip(
        drawn.inputs, drawn.targets, drawn.weights, drawn.distance, strict=True
    ):
        corridors, start, goal = parts(maze)
        there, back = steps_from(corridors, start), steps_from(corridors, goal)
        assert steps == there[goal] > 0
        on_path = corridors & (there + back == steps)
        np.testing.assert_array_equal(path, on_path)
        assert path[start] == path[goal] == 1
        np.testing.assert_array_equal(weights, corridors)
    np.testing.assert_array_equal(drawn.difficulty, drawn.distance)


def test_starts_have_several_neighbors():
    """Networks that are trained on published mazes fail on such starts."""
    drawn = Mazes().examples(np.random.default_rng(0), 100, 9)
    degrees = []
    for maze in drawn.inputs:
        corridors, (row, column), _ = parts(maze)
        around = corridors[row - 1 : row + 2, column - 1 : column + 2]
        degrees.append(around[1].sum() + around[:, 1].sum() - 2)
    assert np.mean(np.array(degrees) == 1) > 0.05
    assert np.mean(np.array(degrees) >= 2) > 0.5
    assert len(np.unique(drawn.inputs.reshape(100, -1), axis=0)) == 100


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        (tmp_path / "mazes.txt").write_text(text)
        return read_mazes(tmp_path / "mazes.txt")

    return read_text


def test_mazes_of_a_file(read):
    text = "\n#####\n#S G#\n#####\n\n\nS ##\r\n# ##\n#  G\n"
    first, second = read(text)
    assert first.inputs.shape == (1, 3, 5, 3)
    np.testing.assert_array_equal(first.targets[0, 1], [0, 1, 1, 1, 0])
    np.testing.assert_array_equal(
        second.targets[0], [[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1]]
    )
    assert first.distance == [2] and second.difficulty == [5]
    assert [array.dtype for array in first] == [
        array.dtype for array in Mazes().examples(np.random.default_rng(0), 1, 3)
    ]


def test_drawn_maze_is_read_back(read):
    drawn = Mazes().examples(np.random.default_rng(0), 3, 9)
    letters = {(0, 0, 0): "#", (1, 1, 1): " ", (0, 1, 0): "S", (1, 0, 0): "G"}
    blocks = [
        "\n".join("".join(letters[tuple(p)] for p in row) for row in maze)
        for maze in drawn.inputs
    ]
    for index, one in enumerate(read("\n\n".join(blocks))):
        for array, expected in zip(one, drawn, strict=True):
            np.testing.assert_array_equal(array[0], expected[index])


def test_cycle_with_one_shortest_path(read):
    (maze,) = read("S    \n ### \nG    \n")
    assert maze.distance == [2] and maze.targets.sum() == 3
