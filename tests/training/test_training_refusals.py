"""Bad input raises an error that names the argument and the received value."""

import numpy as np
import pytest

from tests.training.conftest import SMALL
from training.config import reading as configs
from training.data import images, segmentation, text
from training.data.reasoning import Mazes, Words, read_mazes, read_puzzles
from training.errors import InputError
from training.experiments.classification.schema import AugmentationConfig, DataConfig
from training.experiments.mdeq_segmentation.schema import SegmentationDataConfig


def resolve(**change):
    """Resolves the config of a small classifier with other values."""
    return configs.resolve({**SMALL, **change})


def resolve_model(**change):
    return resolve(model={**SMALL["model"], **change})


def override(path, value):
    return configs.resolve(SMALL, [configs.parse_override(f"{path}={value}")])


def resolve_segmentation(**change):
    config = {"model": {"filters": [8]}, "phases": [{"epochs": 1}], **change}
    return configs.resolve({"experiment": "mdeq_segmentation", **config})


def load_images(**config):
    return images.load(DataConfig(**config))


def load_shapes(**config):
    return segmentation.load(SegmentationDataConfig(**config))


def draw_maze(level):
    return Mazes().examples(np.random.default_rng(0), 1, level)


# Rows: the function, its bad arguments, and the name in the message.
CONFIGS = [
    (resolve, {"experiment": "clasification"}, "`experiment`"),
    (resolve, {"phases": []}, "`phases`"),
    (resolve, {"phases": [{"epochs": 0}]}, "`phases.0.epochs`"),
    (resolve, {"phases": [{"epochs": True}]}, "`phases.0.epochs`"),
    (resolve, {"phases": [{"steps": 0}]}, "`phases.0.steps`"),
    (resolve, {"phases": [{"name": "warm"}]}, "either `epochs` or `steps`"),
    (resolve, {"phases": [{"epochs": 2, "steps": 9}]}, "epochs=2, steps=9"),
    (resolve, {"phases": [{"epochs": 1, "name": "n" * 300}]}, "`phases.0.name`"),
    (resolve, {"optimizer": {"learning_rate": 0}}, "`optimizer.learning_rate`"),
    (resolve, {"optimizer": {"clip_norm": 1e300}}, "`optimizer.clip_norm`"),
    (resolve, {"optimizer": {"name": "ramda"}}, "`optimizer.name`"),
    (resolve, {"optimizer": {"accumulation_steps": 0}}, "accumulation_steps"),
    (resolve, {"data": 3}, "`data`"),
    (resolve, {"seed": -1}, "`seed`"),
    (resolve, {"seeds": [0, 1, 0]}, "`seeds`"),
    (resolve, {"jit_compile": 1}, "`jit_compile`"),
    (resolve, {"evaluation": {"budgets": [4, 10**12]}}, "`evaluation.budgets.1`"),
    (resolve, {"evaluation": {"budgets": [1] * 999}}, "`evaluation.budgets`"),
    (resolve, {"variants": {}}, "`variants`"),
    (resolve, {"variants": {"../up": {}}}, "`variants`"),
    (resolve, {"variants": {"a": {}, "A": {}}}, "`variants`"),
    (resolve, {"variants": {"a": None}}, "`variants.a`"),
    (resolve, {"variants": {"seed_0": {}}}, "`variants`"),
    (resolve, {"variants": {"a": {}, "b": {"seed": 0}}}, "`a` and `b`"),
    (resolve, {"variants": {"a": {"variants.b": {}}}}, "`variants.a`"),
    (resolve, {"variants": {"a": {"seed.x": 1}}}, "variant `a`: `seed`"),
    (resolve, {"tasks": {"a": {}}}, "`tasks.a`"),
    (resolve, {"published": [1]}, "`published`"),
    (resolve, {"published": {"loss": {"model": True}}}, "`published.loss.model`"),
    (resolve_model, {"solver": ["anderson"]}, "`model.solver`"),
    (resolve_model, {"solver": {"max_iter": 3}}, "`model.solver`"),
    (
        resolve_model,
        {"cell": {"class_name": "residual_block_cell", "filters": 1e12}},
        "`model.cell.filters`",
    ),
    (override, {"path": "phases.7.epochs", "value": 1}, "`phases.7`"),
    (override, {"path": "phases.a", "value": 1}, "`phases.a`"),
    (override, {"path": "seed.a.b", "value": 1}, "`seed`"),
    (override, {"path": "model..solver", "value": "x"}, "a.b=value"),
    (override, {"path": "data.directory", "value": "x" * 9000}, "data.directory"),
    (resolve_segmentation, {"data": {"image_size": [64]}}, "`data.image_size`"),
    (resolve_segmentation, {"data": {"train_examples": 10**6}}, "`data`"),
    (resolve_segmentation, {"model": {"filters": [8] * 20}}, "`model.filters`"),
]
FEW = {"train_examples": 4, "test_examples": 2, "batch_size": 2}
PADDED = AugmentationConfig(crop_padding=2)
RESIZED = AugmentationConfig(resized_crop=True)
IMAGES = [
    (load_images, {"train_examples": 5000}, "`data.train_examples`"),
    (load_images, {"validation_examples": 1438}, "`data.validation_examples`"),
    (load_images, {"directory": "/data"}, "`data.directory`"),
    (load_images, {"color_mode": "grayscale"}, "`data.color_mode"),
    (load_images, {"image_size": 32}, "`data.image_size`"),
    (load_images, {"name": "cifar10", "augmentation": RESIZED}, "`resized_crop`"),
    (load_images, {"name": "imagenette", "augmentation": PADDED}, "`crop_padding`"),
    (load_images, {"name": "folder"}, "`data.directory`"),
    (load_images, {"name": "tfds"}, "`data.dataset`"),
    (load_images, {"name": "folder", "dataset": "beans"}, "`data."),
    (load_shapes, {"directory": "/data"}, "`data.directory`"),
    (load_shapes, {"train_examples": 4, "batch_size": 5}, "`data.batch_size`"),
    (load_shapes, {**FEW, "validation_examples": 3}, "`data.validation_examples`"),
]
TRAIN = "to be or not\n"
TEXTS = [
    (text.find_tokenizer, {"minimum_count": 0}, "minimum_count"),
    (text.find_tokenizer, {"level": "byte", "lower_case": True}, "lower_case"),
    (text.find_tokenizer, {"vocabulary_size": 9}, "`data.vocabulary_size`"),
    (text.find_tokenizer, {"level": "subword"}, "`data.vocabulary_size`"),
    (
        text.find_tokenizer,
        {"level": "subword", "minimum_count": 2, "vocabulary_size": 9},
        "`minimum_count`",
    ),
    (
        text.find_tokenizer,
        {"level": "subword", "vocabulary_size": 3},
        "`data.vocabulary_size`",
    ),
]
TASKS = [
    (draw_maze, {"level": 8}, "level"),
    (draw_maze, {"level": 1}, "level"),
    (draw_maze, {"level": 403}, "level"),
    (Words, {"letters": "a"}, "`letters`"),
]


def _name(value):
    return getattr(value, "__name__", None) if callable(value) else str(value)[:40]


@pytest.mark.parametrize(
    ("function", "arguments", "name"), [*CONFIGS, *IMAGES, *TEXTS, *TASKS], ids=_name
)
def test_bad_argument_raises(function, arguments, name):
    if function is text.find_tokenizer:
        arguments = {"level": "word", "training_text": TRAIN, **arguments}
    with pytest.raises(InputError) as error:
        function(**arguments)
    message = str(error.value)
    assert name in message and "Received" in message
    assert len(message) < 1000


# Lines of a file, and the number of the line that the message names, if it does.
MAZES = [
    ("###\n###\n", 1),  # Neither start nor goal.
    ("S G\n\n\n   \nS  \n", 4),  # No goal.
    ("SGG\n", 1),
    ("S G\n\n#S#\n##\n", 4),  # A short line.
    ("S G\n#x#\n", 2),
    ("S#G\n", 1),  # No path.
    ("S G\n\nS \n G\n", 3),  # Two shortest paths.
]
SOLUTION = "1234341221434321"
PUZZLES = [
    SOLUTION[:-1],
    SOLUTION[:-1] + "5",
    "." * 16,
    "1..1" + "." * 12,  # Twice in a row, a column, a box.
    "2..." * 2 + "." * 8,
    ".3..3" + "." * 11,
    "12.....3...4....",  # No solution.
    "1" + "." * 15,  # Many solutions.
]
FILES = [
    *((read_mazes, content, f"line {line}") for content, line in MAZES),
    *(
        (lambda path: read_puzzles(path, 4), f"{SOLUTION}\n{line}\n", "line 2")
        for line in PUZZLES
    ),
    (text.from_file, "one\ntwo \xff three", "line 2"),
    (text.from_file, "PK\x03\x04\n\n\0\0", "line 3"),
]


@pytest.mark.parametrize(("read", "content", "line"), FILES)
def test_bad_line_raises(tmp_path, read, content, line):
    path = tmp_path / "file.txt"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=f"(?s){line}") as error:
        read(path)
    assert str(path) in str(error.value) and "Received" in str(error.value)


@pytest.mark.parametrize(
    "read",
    [read_mazes, lambda path: read_puzzles(path, 4), text.from_file],
    ids=["mazes", "puzzles", "text"],
)
@pytest.mark.parametrize("content", [None, b"", b"\xef\xbb\xbf \n\n\t"])
def test_missing_or_empty_file_raises(tmp_path, read, content):
    path = tmp_path / "file.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=str(path)):
        read(path)


HINTS = [
    ({"sed": 1}, "`seed`"),
    ({"phases": [{"epoch": 3}]}, "`phases.0.epochs`"),
    ({"precision": "float23"}, "`float32`"),
    ({"published": {"loss": {"modle": 1}}}, "`model`"),
    ({"model": {**SMALL["model"], "name": "mdqe"}}, "`mdeq`"),
]


@pytest.mark.parametrize(("change", "near"), HINTS)
def test_misspelled_name_has_a_hint(change, near):
    with pytest.raises(InputError, match=f"Did you mean {near}"):
        resolve(**change)


def test_missing_key_is_named():
    increment = "regularizer_weight_increment"
    with pytest.raises(InputError, match=f"`phases.0.{increment}.amount` is required"):
        resolve(phases=[{"epochs": 9, increment: {"every_epochs": 1}}])
