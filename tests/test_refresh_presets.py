"""Presets of the package are trained again with the configs in their cards."""

import importlib.util
import pathlib
import re
import shutil

import pytest

from deq_keras import models
from deq_keras.models.kerashub import FOLDER
from training.config import reading as configs
from training.errors import InputError

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


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in FOLDER.glob("*/README.md"))
)
def test_the_config_of_each_card_is_valid(name):
    card = refresh_presets.read_card(FOLDER / name)
    assert configs.run_names(configs.resolve(card.config)) == [card.run]
    assert len(card.commit) >= 7 and len(card.scores) > 5
    assert card.scores[max(card.scores)] > 1


def test_the_facts_of_a_card():
    card = refresh_presets.read_card(FOLDER / "monotone_digits")
    assert (card.run, card.commit) == ("model", "2c7b886")
    assert card.scores[1] == 96.7 and card.scores[30] == 97.8
    assert card.config["model"]["cell"]["units"] == 87


def test_a_card_without_scores_is_refused(tmp_path):
    text = (FOLDER / "mazes" / "README.md").read_text()
    (tmp_path / "README.md").write_text(text.replace(" at NFE", ""))
    with pytest.raises(InputError, match="Missing: scores"):
        refresh_presets.read_card(tmp_path)


def test_other_presets_are_refused(capsys):
    with pytest.raises(SystemExit):
        refresh_presets.main(["labyrinths"])
    assert "NAME must be one of" in capsys.readouterr().err


@pytest.mark.slow
def test_a_worse_preset_replaces_none_unless_accepted(tmp_path, capsys):
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


def test_the_spread_of_other_seeds_joins_the_card(tmp_path):
    presets, name = tmp_path / "presets", "monotone_digits"
    shutil.copytree(FOLDER / name, presets / name)
    card = presets / name / "README.md"
    before = card.read_text().partition("## Spread")[0].rstrip()
    facts = refresh_presets.read_card(presets / name)
    for _ in range(2):  # The second call finds the runs, and replaces its section.
        refresh_presets.add_spread(name, tmp_path / "runs", [1, 2], QUICK, presets)
    text = card.read_text()
    assert text.startswith(before) and text.count("## Spread") == 1
    assert "with the seeds 1, 2," in text and re.search(r"\nmodel .* \+- ", text)
    assert refresh_presets.read_card(presets / name) == facts
    assert sorted(path.name for path in presets.iterdir()) == [name]
    models.MonotoneClassifier.from_preset(presets / name)
