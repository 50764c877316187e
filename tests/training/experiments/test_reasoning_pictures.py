"""Pictures of reasoning: their frames, their colors, and what they refuse."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from training.data.reasoning import Mazes, Sudoku
from training.experiments.reasoning import pictures


@pytest.fixture(scope="module")
def maze():
    """A maze, and a path that grows clearer."""
    task = Mazes()
    examples = task.examples(np.random.default_rng(0), 1, 5)
    truth = examples.targets[0]
    on_path = [0.5 + share * (truth - 0.5) for share in (-0.5, 0.5, 1.0)]
    return task, examples, np.stack([1 - np.array(on_path), on_path], axis=-1)


@pytest.fixture(scope="module")
def board():
    task = Sudoku(4)
    examples = task.examples(np.random.default_rng(0), 1, 0)
    even, sure = np.full((4, 4, 4), 0.25), np.eye(4)[examples.targets[0]]
    return task, examples, np.stack([even, sure])


def frames_of(path):
    with Image.open(path) as image:
        assert image.format == "GIF"
        found = []
        for index in range(image.n_frames):
            image.seek(index)
            found.append((image.info["duration"], np.array(image.convert("RGB"))))
        return found


def test_frames_of_a_maze(tmp_path, maze):
    path = tmp_path / "maze.gif"
    path.write_text("of before")
    pictures.draw(path, *maze, [1, 2, 3])
    found = frames_of(path)
    assert [image.shape for _, image in found] == [(344, 320, 3)] * 3
    assert found[-1][0] > 10 * found[0][0]  # The last frame stays.
    is_path = [np.abs(image - 255 * pictures._PATH).max(-1) < 12 for _, image in found]
    # All but the ends, each pixel of 7 a side on about 307 of the picture.
    _, examples, _ = maze
    assert is_path[-1].sum() == pytest.approx(
        (examples.targets.sum() - 2) * (307 / 7) ** 2, rel=0.05
    )
    assert not is_path[0].any() and not is_path[1].any()
    assert [file.name for file in tmp_path.iterdir()] == ["maze.gif"]


def test_digits_of_a_board(board):
    _, examples, probabilities = board
    inputs, truth = examples.inputs[0], examples.targets[0]
    axes = Figure().add_subplot()
    wrong = probabilities[1].copy()
    row, column = np.argwhere(inputs == 0)[0]
    wrong[row, column] = np.eye(4)[(truth[row, column] + 1) % 4] * 0.8 + 0.05
    pictures._draw_digits(axes, inputs, wrong, truth, (2, 2), 120)
    shown = np.reshape([text.get_text() for text in axes.texts], (4, 4)).astype(int)
    expected = truth + 1
    expected[row, column] = (truth[row, column] + 1) % 4 + 1
    np.testing.assert_array_equal(shown, expected)
    colors = np.reshape([text.get_color() for text in axes.texts], (4, 4))
    assert set(colors[inputs > 0]) == {"black"}
    assert colors[row, column] == "tab:red"
    assert np.sum(colors == "tab:blue") == np.sum(inputs == 0) - 1
    alphas = np.reshape([text.get_alpha() for text in axes.texts], (4, 4))
    assert alphas[row, column] == pytest.approx(0.8)
    # The lines around boxes are thick, of 5 lines each way.
    assert sorted(line.get_linewidth() for line in axes.lines) == [0.5] * 4 + [3.0] * 6
