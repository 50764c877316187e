"""Presets of the package are trained again with the configs in their cards."""

import importlib.util
import pathlib
import shutil

import numpy as np
import pytest

from deq_keras import models
from deq_keras.models.kerashub import FOLDER
from training.config import reading as configs
from training.data import reasoning
from training.data.images import digits
from training.errors import InputError
from training.experiments import imaging

SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "refresh_presets.py"
_SPEC = importlib.util.spec_from_file_location("refresh_presets", SCRIPT)
refresh_presets = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(refresh_presets)

QUICK = [
    "phases.0.epochs=1",
    "data.train_examples=128",
    "data.test_examples=64",
    "evaluation={budgets: [1, 4], num_samples: 8, max_iter: 5}",
    "model.cell.units=8",
    "tensorboard=false",
]


def test_config_of_each_card_is_valid():
    for path in FOLDER.glob("*/README.md"):
        card = refresh_presets.read_card(path.parent)
        assert configs.run_names(configs.resolve(card.config)) == [card.run]
        assert len(card.commit) >= 7 and card.scores[max(card.scores)] > 1


def _reasoner(task, level, count):
    def score(name):
        examples = reasoning.held_out_examples(task, level, count, seed=0)
        model = models.ReasonerTagger.from_preset(name)
        classes = model.predict(examples.inputs, verbose=0).argmax(axis=-1)
        return 100 * np.mean(reasoning.is_solved(classes, examples))

    return score


def _classifier(cls):
    def score(name):
        _, test = digits.load()
        logits = cls.from_preset(name).predict(test.images, verbose=0)
        return 100 * np.mean(logits.argmax(axis=-1) == test.labels)

    return score


def _deblur(name):
    config = refresh_presets.read_card(FOLDER / name).config["data"]
    draw = imaging.ImagingJob.load_data(imaging.DataConfig(**config), None)
    inputs, images = draw(0)[1]
    restored = models.ImageRestorer.from_preset(name).predict(inputs, verbose=0)
    return np.mean(imaging.scores(restored, images)["psnr"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, score, tolerance",
    [
        # The scores of the cards are of solves without a tolerance.
        ("prefix_sums", _reasoner(reasoning.PrefixSums(), 512, 200), 0.5),
        ("mazes", _reasoner(reasoning.Mazes(), 33, 40), 2.5),
        ("sudoku_6x6", _reasoner(reasoning.Sudoku(6), 0, 200), 0.5),
        ("digits", _classifier(models.MDEQImageClassifier), 0.05),
        ("monotone_digits", _classifier(models.MonotoneClassifier), 0.05),
        ("deblur", _deblur, 0.01),
    ],
)
def test_presets_have_the_scores_of_their_cards(name, score, tolerance):
    """`characters` needs a text that is not in the package."""
    scores = refresh_presets.read_card(FOLDER / name).scores
    assert abs(score(name) - scores[max(scores)]) <= tolerance


def test_card_without_scores_raises(tmp_path):
    text = (FOLDER / "mazes" / "README.md").read_text()
    (tmp_path / "README.md").write_text(text.replace(" at NFE", ""))
    with pytest.raises(InputError, match="Missing: scores"):
        refresh_presets.read_card(tmp_path)


@pytest.mark.slow
def test_worse_preset_must_be_accepted(tmp_path, capsys):
    presets, name = tmp_path / "presets", "monotone_digits"
    shutil.copytree(FOLDER / name, presets / name)
    before = (presets / name / "model.keras").read_bytes()
    arguments = {"runs": tmp_path / "runs", "changes": QUICK, "presets": presets}
    assert not refresh_presets.refresh(name, **arguments)
    assert "WORSE, 97.8 before" in capsys.readouterr().out
    assert (presets / name / "model.keras").read_bytes() == before
    assert refresh_presets.refresh(name, **arguments, accepts_worse=True)
    assert "replaced; 97.8 before" in capsys.readouterr().out
    card = refresh_presets.read_card(presets / name)
    assert card.config["model"]["cell"]["units"] == 8
    assert card.scores.keys() == {1, 4}
    assert models.MonotoneClassifier.from_preset(presets / name).count_params() < 5000
    assert [path.name for path in presets.iterdir()] == [name]
