"""The demos of trained models."""

import re

import numpy as np
import pytest
from PIL import Image

from training.cli import main

MAZE = """\
#######
#S    #
##### #
#G    #
#######
"""


@pytest.mark.slow
def test_maze_of_a_file_is_solved_and_drawn(tmp_path, capsys):
    file = tmp_path / "maze.txt"
    file.write_text(MAZE)
    out = tmp_path / "maze.gif"
    assert main(["demo", "mazes", "--file", str(file), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert "██SS********██" in lines and "██GG********██" in lines
    assert "Right from evaluation" in printed and str(out) in printed
    with Image.open(out) as image:
        assert image.n_frames > 10


@pytest.mark.slow
def test_sudoku_is_filled(tmp_path, capsys):
    out = tmp_path / "sudoku.gif"
    assert main(["demo", "sudoku", "--seed", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()[:6]]
    assert [sorted(row) for row in rows] == [list("123456")] * 6
    assert "Right from evaluation" in printed and out.is_file()


@pytest.mark.slow
def test_digits_at_budgets(tmp_path, capsys):
    out = tmp_path / "digits.svg"
    assert main(["demo", "digits", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "NFE  1  accuracy" in printed and "NFE 20  accuracy" in printed
    assert "<svg" in out.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("has_file", [False, True])
def test_deblur_sharpens(has_file, tmp_path, capsys):
    out = tmp_path / ("deblur.gif" if has_file else "deblur.png")
    arguments = []
    if has_file:
        pixels = np.kron(np.indices((9, 8)).sum(axis=0) % 2, np.ones((8, 8)))
        Image.fromarray((200 * pixels).astype("uint8")).save(tmp_path / "board.png")
        arguments = [str(tmp_path / "board.png")]
    assert main(["demo", "deblur", *arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    found = re.findall(r"^(\w+).*PSNR ([\d.]+) dB", printed, re.MULTILINE)
    ratios = {name: float(ratio) for name, ratio in found}
    assert list(ratios) == ["measured", "1", "2", "4", "8", "equilibrium"]
    assert ratios["equilibrium"] > ratios["measured"] + 2
    with Image.open(out) as image:
        assert min(image.size) > 300
        assert getattr(image, "n_frames", 1) == (7 if has_file else 1)


@pytest.mark.slow
def test_characters(capsys):
    assert main(["demo", "characters", "--prompt", "ROMEO:"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("ROMEO:") and len(printed) > 100


def test_existing_file_is_kept(tmp_path, capsys):
    out = tmp_path / "maze.gif"
    out.write_text("mine")
    assert main(["demo", "mazes", "--out", str(out)]) == 2
    assert "--out must be a new file" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mazes", "--size", "10"], "--size must be odd. Received: 10"),
        (["mazes", "--file", "nowhere.txt"], "nowhere.txt"),
        (["sudoku", "--out", "nowhere/sudoku.gif"], "--out"),
        (["digits", "--out", "digits.gif"], "--out"),
        (["digits", "--seed", "3"], "--seed"),
        (["deblur", "--out", "deblur.txt"], "--out"),
        (["deblur", "nowhere.png"], "nowhere.png"),
        (["deblur", "one.png", "--file", "two.png"], "Name the file once"),
        (["characters", "--prompt", ""], "--prompt"),
    ],
)
def test_bad_arguments_have_status_2(arguments, words, capsys):
    assert main(["demo", *arguments]) == 2
    assert words in capsys.readouterr().err
