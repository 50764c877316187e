"""A corrupt `.keras` file is named, with a remedy."""

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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file and its model."""
    path = tmp_path_factory.mktemp("models") / "model.keras"
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="a")])
    saved_model.save(model, path)
    return path, model


def _with_parts(change):
    """Returns a function that writes the archive with other parts."""

    def damage(path):
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        change(parts)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)

    return damage


def _without(name):
    return _with_parts(lambda parts: parts.pop(name))


def _with(name, content):
    return _with_parts(lambda parts: parts.update({name: content}))


def _flip(part):
    """Returns a function that changes a bit in the middle of a part."""

    def damage(path):
        with zipfile.ZipFile(path) as archive:
            middle = archive.read(part)[len(archive.read(part)) // 2 :]
        content = bytearray(path.read_bytes())
        content[bytes(content).index(middle)] ^= 4
        path.write_bytes(content)

    return damage


def _cut(share):
    def damage(path):
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return damage


def _folder(path):
    path.unlink()
    path.mkdir()


WEIGHTS, CONFIG = "model.weights.h5", "config.json"
DAMAGE = {
    "truncated": _cut(0.99),
    "empty": _cut(0),
    "no weights": _without(WEIGHTS),
    "no config": _without(CONFIG),
    "no h5": _with(WEIGHTS, b"garbage" * 1000),
    "json of something else": _with(CONFIG, b"[3]"),
    "a bit of the weights": _flip(WEIGHTS),
    "a folder": _folder,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_corrupt_file_is_named(saved, tmp_path, damage):
    path = tmp_path / "model.keras"
    shutil.copy(saved[0], path)
    damage(path)
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
def test_unknown_code_raises(saved, tmp_path, config, words):
    path = shutil.copy(saved[0], tmp_path / "model.keras")
    content = {"module": "x", "config": {}, "registered_name": None, **config}
    _with(CONFIG, json.dumps(content).encode())(path)
    with pytest.raises(InputError, match=words) as error:
        saved_model.load(path, "Train it again.")
    assert "damaged" not in str(error.value) and len(str(error.value)) < 700


def test_saved_model_is_loaded(saved):
    path, model = saved
    loaded = saved_model.load(path, "").get_weights()
    np.testing.assert_equal(model.get_weights(), loaded)


@pytest.mark.slow
def test_library_model_is_loaded_in_a_new_process(tmp_path):
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
