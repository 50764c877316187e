"""Models that come with the package solve problems they have not been trained on."""

import numpy as np
import pytest

from deq_keras import layers, models
from deq_keras.models.kerashub import FOLDER
from tests.regimes import slow
from training.data.images import digits, photographs
from training.data.reasoning import Mazes, Sudoku, is_solved

CLASSES = {
    "mazes": models.ReasonerTagger,
    "prefix_sums": models.ReasonerTagger,
    "sudoku_6x6": models.ReasonerTagger,
    "digits": models.MDEQImageClassifier,
    "monotone_digits": models.MonotoneClassifier,
    "deblur": models.ImageRestorer,
    "characters": models.DEQTransformerCausalLM,
}


def test_every_folder_has_a_preset_and_a_card():
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()}
    assert folders == set(CLASSES)
    for name, cls in CLASSES.items():
        assert name in cls.presets
        card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
        assert "```yaml" in card and "at NFE" in card and cls.__name__ in card


@pytest.mark.parametrize(
    "preset, task, level, expected",
    [("mazes", Mazes(), 15, 0.9), slow("sudoku_6x6", Sudoku(6), 4, 0.7)],
)
def test_reasoners_solve_larger_or_harder_problems(preset, task, level, expected):
    model = models.ReasonerTagger.from_preset(preset)
    examples = task.examples(np.random.default_rng(5), 5, level)
    answers = np.argmax(model.predict(examples.inputs, verbose=0), axis=-1)
    assert np.mean(is_solved(answers, examples)) >= expected


def test_parities_of_strings_as_the_card_describes_them():
    """A wrong offset of the bits only matters in long strings."""
    model = models.ReasonerTagger.from_preset("prefix_sums")
    bits = np.random.default_rng(0).integers(2, size=(12, 512))
    classes = model.predict(bits[..., None], verbose=0).argmax(-1)
    np.testing.assert_array_equal(classes, bits.cumsum(axis=1) % 2)


@pytest.mark.parametrize("preset", ["digits", "monotone_digits"])
def test_classifiers_know_digits(preset):
    model = CLASSES[preset].from_preset(preset)
    model.run_eagerly = True
    _, test = digits.load()
    images, labels = test.images[:64], test.labels[:64]
    answers = np.argmax(model.predict(images, batch_size=64, verbose=0), axis=-1)
    assert np.mean(answers == labels) > 0.95


def test_restorer_sharpens_a_larger_photograph():
    model = models.ImageRestorer.from_preset("deblur")
    image = photographs.load()[1]["camera"][None, 80:128, 80:144, None]
    kernel = model.backbone.deq.cell.operator.kernel
    operator = layers.Blur(kernel, image.shape[1:])
    image = image / np.float32(255)
    noise = np.random.default_rng(0).normal(size=image.shape)
    blurred = (np.asarray(operator(image)) + 0.02 * noise).astype("float32")
    larger = model.with_operator(operator)
    larger.run_eagerly = True
    inputs = {"measurements": blurred, "noise_level": np.array([[0.02]])}
    sharp = larger.predict(inputs, verbose=0)
    errors = [np.mean((x - image) ** 2) for x in (blurred, sharp)]
    assert errors[1] < errors[0] / 1.8


def test_language_model_continues_a_text():
    model = models.DEQTransformerCausalLM.from_preset("characters")
    model.run_eagerly = True
    text = model.generate("The ", max_length=9)
    assert text.startswith("The ") and len(text) > 6
    assert np.mean([one.isalpha() or one == " " for one in text]) > 0.7


def test_trained_preset_without_its_weights():
    plain = models.ReasonerTagger.from_preset("mazes", load_weights=False)
    trained = models.ReasonerTagger.from_preset("mazes")
    pairs = zip(plain.weights, trained.weights, strict=True)
    assert any(np.any(a.numpy() != b.numpy()) for a, b in pairs)
    assert isinstance(plain.backbone.deq.cell, layers.AutomatonCell)
