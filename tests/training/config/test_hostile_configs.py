"""Odd texts and trees: each raises a short `InputError`, or is a config."""

import pytest

from tests.regimes import slow
from training.config import reading as configs
from training.errors import InputError

MODEL = "model: {cell: {class_name: residual_block_cell, filters: 8}}"
PHASES = "phases: [{epochs: 2}]"


def text(*lines):
    return "\n".join(["experiment: classification", MODEL, PHASES, *lines, ""])


LAUGHS = ["a: &a [x, x, x, x, x, x, x, x]"] + [
    f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]"
    for old, new in zip("abcdefghijk", "bcdefghijkl")
]

TEXTS = {
    "empty": b"",
    "list": b"- 1",
    "not UTF-8": b"a: \xff",
    "control character": b"a: \x00",
    "escaped control character": text('data: {directory: "a\\0b"}'),
    "huge": b"# comment\n" * 100_000,
    "deep": text("data: " + "[" * 3000),
    "recursive": text("data: &d {x: *d}"),
    "laughs": text(*LAUGHS),
    "many values": text(f"data: [{'1, ' * 20_000}]"),
    "list as key": text("? [a]", ": 1"),
    "number as key": text("1: 2"),
    "long value": text(f"data: {{directory: {'x' * 10_000}}}"),
    "bad date": text("seed: 2024-13-45"),
    "code": text("data: !!python/name:os.system ''"),
    "wrong type": text("seed: !!int abc"),
    "10**400": text(f"seed: {10**400}"),
    "too many digits": text(f"seed: 0x{'f' * 4000}"),
    "infinite": text("optimizer: {warmup_epochs: .inf}"),
    "nan": text("optimizer: {clip_norm: .nan}"),
    "no experiment": b"a: b",
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_bad_text_raises(tmp_path, content):
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        configs.load(path)
    assert str(path) in str(error.value) and len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("data: {name: digits", "line 5, column 1"),
        ("data: *none", "line 4, column 7"),
        ("seed: 1\nseed: 2", "line 5, column 1: the key `seed`"),
    ],
)
def test_bad_yaml_is_located(tmp_path, line, words):
    path = tmp_path / "config.yaml"
    path.write_text(text(line))
    with pytest.raises(InputError, match=words):
        configs.load(path)


@pytest.mark.parametrize("name", ["", "none.yaml", "x" * 300, "a\0b"])
def test_missing_file_raises(tmp_path, name):
    with pytest.raises(InputError, match="Cannot read the config"):
        configs.load(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    "override",
    [
        "seed",
        "=",
        f"{'x.' * 3000}x=1",
        f"model.solver{'.x' * 60}=1",
        "phases.-1.epochs=1",
        "phases.².epochs=1",
        "experiment=synthetic",
        "seed=[",
        "seed=2024-13-45",
        "data=&d {x: *d}",
        "data.directory=\udcff",
    ],
    ids=lambda override: override[:20],
)
def test_bad_override_raises(tmp_path, override):
    path = tmp_path / "config.yaml"
    path.write_text(text())
    with pytest.raises(InputError) as error:
        configs.load(path, [override])
    assert len(str(error.value)) < 1000


def test_cycle_in_python_raises(small):
    small["data"]["augmentation"] = small
    with pytest.raises(InputError, match="does it hold itself"):
        configs.resolve(small)


DEEP = []
for _ in range(100):
    DEEP = [DEEP]
VALUES = [None, True, -1, 10**400, float("nan"), 1e300, "", "x" * 10_000, "a\0b"]
VALUES += ["../up", [], [1, "x", {}], [0] * 20_000, DEEP, {}, {1: 2}, b"", object()]
VALUES += [{"class_name": []}, {"class_name": "anderson", "solver": {"class_name": 3}}]


def places(tree):
    """Yields each mapping or list in a tree, with each of its keys."""
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        if isinstance(part, dict | list):
            yield from places(part)


@pytest.mark.parametrize("step", [8, slow(1)])
def test_odd_value_raises_or_is_valid(small, step):
    """Every place gets every `step`-th value."""
    tree = configs.to_mapping(configs.resolve(small))
    for index, (node, key) in enumerate(list(places(tree))):
        original = node[key]
        for value in VALUES[index % step :: step]:
            node[key] = value
            try:
                configs.resolve(tree)
            except InputError as error:
                assert len(str(error)) < 1000
        node[key] = original


def test_odd_names_survive_the_work_directory(tmp_path, small):
    names = ["1e5", "1_000", "010", "null", "yes", "2024-01-01"]
    small["variants"] = {
        name: {"optimizer.learning_rate": rate * 1e-5}
        for rate, name in enumerate(names, start=1)
    }
    config, path = configs.resolve(small), tmp_path / "config.yaml"
    path.write_text(configs.to_yaml(config), encoding="utf-8")
    assert configs.load(path) == config


def test_numbers_have_exponents(tmp_path):
    path = tmp_path / "config.yaml"
    for number in ("1e-3", "1.0e-3", "1.e-3", ".1e-2", "1E-3", "1.0E-03"):
        path.write_text(text(f"optimizer: {{learning_rate: {number}}}"))
        assert configs.load(path).optimizer.learning_rate == 1e-3
    assert configs.load(path, ["optimizer.clip_norm=1.5e3"]).optimizer.clip_norm == 1500


def test_alias_is_a_copy(tmp_path):
    path = tmp_path / "config.yaml"
    changes = "{optimizer: &o {learning_rate: 0.1}}"
    path.write_text(text(f"variants: {{a: {changes}, b: {{optimizer: *o}}}}"))
    config = configs.load(path, ["variants.a.optimizer.learning_rate=0.2"])
    assert configs.variant(config, "a").optimizer.learning_rate == 0.2
    assert configs.variant(config, "b").optimizer.learning_rate == 0.1
