"""Every kind of damaged `.keras` file is named, with what to do."""

import json
import shutil
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import deq_keras
from training.errors import InputError
from training.files import saved_model


def _saved(path, units):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, name="a")])
    saved_model.save(model, path)
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file, its model, and the file of another model."""
    folder = tmp_path_factory.mktemp("models")
    model = _saved(folder / "model.keras", 2)
    _saved(folder / "other.keras", 4)
    return folder / "model.keras", model, folder / "other.keras"


def _with_parts(change):
    """Returns a function that writes the archive with other parts."""

    def damage(path, other):
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(other) as other:
            parts = {name: archive.read(name) for name in archive.namelist()}
            others = {name: other.read(name) for name in other.namelist()}
        change(parts, others)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)

    return damage


def _without(name):
    return _with_parts(lambda parts, _: parts.pop(name))


def _with(name, content):
    return _with_parts(lambda parts, _: parts.update({name: content}))


def _of_other(name):
    return _with_parts(lambda parts, others: parts.update({name: others[name]}))


def _flip(part):
    """Returns a function that changes a bit in the middle of a part."""

    def damage(path, _):
        with zipfile.ZipFile(path) as archive:
            middle = archive.read(part)[len(archive.read(part)) // 2 :]
        content = bytearray(path.read_bytes())
        content[bytes(content).index(middle)] ^= 4
        path.write_bytes(content)

    return damage


def _cut(share):
    def damage(path, _):
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return damage


def _folder(path, _):
    path.unlink()
    path.mkdir()


WEIGHTS, CONFIG = "model.weights.h5", "config.json"
DAMAGE = {
    "truncated": _cut(0.99),
    "half": _cut(0.5),
    "empty": _cut(0),
    "garbage": lambda path, _: path.write_bytes(b"garbage" * 1000),
    "no weights": _without(WEIGHTS),
    "no config": _without(CONFIG),
    "no h5": _with(WEIGHTS, b"garbage" * 1000),
    "weights of another model": _of_other(WEIGHTS),
    "config of another model": _of_other(CONFIG),
    "no json": _with(CONFIG, b"{"),
    "json of something else": _with(CONFIG, b"[3]"),
    "a bit of the weights": _flip(WEIGHTS),
    "a bit of the config": _flip(CONFIG),
    "a folder": _folder,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(whole, tmp_path, damage):
    file, _, other = whole
    path = tmp_path / "model.keras"
    shutil.copy(file, path)
    damage(path, other)
    with pytest.raises(InputError) as error:
        saved_model.load(path, "Train it again.")
    message = str(error.value)
    assert str(path) in message and len(message) < 700
    assert "Train it again." in message or "remove the folder" in message


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"class_name": "X"}, "has the class `X`, which is not registered"),
        (
            {
                "module": "keras.layers",
                "class_name": "Lambda",
                "config": {"function": {"class_name": "__lambda__", "config": {}}},
            },
            "a function that is saved as code",
        ),
    ],
    ids=["an unknown class", "a lambda"],
)
def test_code_that_is_not_known_is_no_damage(whole, tmp_path, config, words):
    path = shutil.copy(whole[0], tmp_path / "model.keras")
    content = {"module": "x", "config": {}, "registered_name": None, **config}
    _with(CONFIG, json.dumps(content).encode())(path, whole[2])
    with pytest.raises(InputError, match=words) as error:
        saved_model.load(path, "Train it again.")
    assert "damaged" not in str(error.value) and len(str(error.value)) < 700


def test_what_was_saved_is_loaded(whole):
    file, model, _ = whole
    for one, other in zip(
        model.get_weights(), saved_model.load(file, "").get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_models_of_ours_are_loaded_in_a_new_process(tmp_path):
    backbone = deq_keras.models.ReasonerBackbone(
        deq_keras.layers.AutomatonCell(4), (5, 5, 1)
    )
    path = str(tmp_path / "model.keras")
    saved_model.save(deq_keras.models.ReasonerTagger(backbone, num_classes=2), path)
    # The classes of `deq_keras.models` are registered when that is first imported.
    source = (
        "import deq_keras\n"
        "from training.files import saved_model\n"
        f"print(type(saved_model.load({path!r}, '')).__name__)\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.split() == ["ReasonerTagger"]
