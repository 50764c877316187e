"""Configs as nobody should write them: each is refused in words, or is a config."""

import random
import re
import time
from pathlib import Path

import pytest

from tests.training.config.hostile import VALUES, mutated
from training.config import reading as configs
from training.errors import InputError

FOLDER = Path(__file__).parents[3] / "configs"
SHIPPED = sorted(FOLDER.glob("*/*.yaml"))

CELL = "{class_name: residual_block_cell, filters: 8}"
MODEL = f"model: {{cell: {CELL}}}"
PHASES = "phases: [{epochs: 2}]"


def text(*lines, experiment="classification", model=MODEL, phases=PHASES):
    return "\n".join([f"experiment: {experiment}", model, phases, *lines, ""])


def solver(config):
    return f"model: {{cell: {CELL}, solver: {config}}}"


def refusal(path, overrides=()):
    """Returns the message, which must be one that a terminal holds."""
    with pytest.raises(InputError) as error:
        configs.load(path, overrides)
    message = str(error.value)
    assert len(message) < 1000
    return message


LAUGHS = ["a: &a [x, x, x, x, x, x, x, x]"] + [
    f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]"
    for old, new in zip("abcdefghijk", "bcdefghijkl")
]

NO_YAML = {
    "empty": (b"", "must hold a mapping"),
    "list": (b"- 1", r"must hold a mapping. Received: config=\[1\]"),
    "text": (b"x" * 300, "must hold a mapping"),
    "not UTF-8": (b"a: \xff", "UTF-8"),
    "UTF-16": ("a: b".encode("utf-16"), "UTF-8"),
    "control character": (b"a: \x00", "unacceptable character"),
    "escaped control character": (
        text('data: {directory: "a\\0b"}'),
        "`data.directory` must be text of one line",
    ),
    "lone surrogate": (
        text('data: {directory: "\\ud800"}'),
        "`data.directory` must be text of one line",
    ),
    "huge": (b"# comment\n" * 100_000, "longer than 262144 bytes"),
    "unclosed": (text("data: {name: digits"), "line 5, column 1"),
    "two documents": (b"a: 1\n---\nb: 2", "another document"),
    "version": (b"%YAML 3.0\n---\na: b", "version"),
    "unknown alias": (text("data: *none"), "line 4, column 7: found undefined alias"),
    "deep": (text("data: " + "[" * 3000), "nested more than 32 levels deep"),
    "deep and closed": (
        text("data: " + "[" * 3000 + "]" * 3000),
        "line 4, column 38: nested more than 32 levels deep",
    ),
    "deep mapping": (text("data: " + "{a: " * 3000), "nested more than 32 levels"),
    "recursive mapping": (text("data: &d {x: *d}"), "does it hold itself"),
    "recursive list": (text("phases: &p [*p]", phases=""), "does it hold itself"),
    "laughs": (text(*LAUGHS), "more than 10000 values"),
    "many values": (text(f"data: [{'1, ' * 20_000}]"), "more than 10000 values"),
    "merge key": (text("data: {<<: {name: digits}}"), "line 4, column 8"),
    "repeated key": (text("seed: 1", "seed: 2"), "line 5, column 1: the key `seed`"),
    "list as key": (text("? [a]", ": 1"), "unhashable key"),
    "number as key": (text("1: 2"), "keys are text.*quotes.*Received: key=1"),
    "null as key": (text("~: 2"), "keys are text.*Received: key=None"),
    "empty key": (text('"": 2'), "1 to 200 characters. .*Received: key=''"),
    "long key": (text(f"? {'k' * 3000}", ": 1"), "1 to 200 characters"),
    "long value": (text(f"data: {{directory: {'x' * 10_000}}}"), "4096 characters"),
    "date": (text("seed: 2024-01-01"), "line 4, column 7: .*timestamp.*in quotes"),
    "bad date": (text("seed: 2024-13-45"), "line 4, column 7: .*timestamp.*in quotes"),
    "set": (text("data: !!set {a}"), "'set'"),
    "pairs": (text("data: !!pairs [a: b]"), "'pairs'"),
    "omap": (text("data: !!omap [a: b]"), "'omap'"),
    "binary": (text("data: !!binary aGVsbG8="), "'binary'"),
    "python": (text("data: !!python/name:os.system ''"), "'python/name:os.system'"),
    "tag": (text("data: !mine {}"), "'!mine'"),
    "wrong int": (
        text("seed: !!int abc"),
        "line 4, column 7: 'abc' is not of type int",
    ),
    "empty int": (text("seed: !!int ''"), "'' is not of type int"),
    "wrong bool": (text("jit_compile: !!bool maybe"), "'maybe' is not of type bool"),
    "wrong float": (text("seed: !!float x"), "'x' is not of type float"),
    "list as str": (text("data: !!str [a]"), "expected a scalar node"),
    "list as map": (text("data: !!map [a]"), "expected a mapping node"),
    "map as list": (
        text("phases: !!seq {a: b}", phases=""),
        "expected a sequence node",
    ),
    "10**400": (
        text(f"seed: {10**400}"),
        "`seed` .*Received: seed=an integer of about",
    ),
    "hexadecimal": (text(f"seed: 0x{'f' * 4000}"), "integer of about 4816 digits"),
    "sexagesimal": (text(f"seed: 1{':1' * 1500}"), "integer of about 26"),
    "too many digits": (text(f"seed: {'9' * 5000}"), "4096 characters"),
    "infinite": (
        text("optimizer: {warmup_epochs: .inf}"),
        "`optimizer.warmup_epochs` must be a finite number. .*: warmup_epochs=inf",
    ),
    "overflow": (text("optimizer: {clip_norm: 1e400}"), "finite"),
    "nan": (text("optimizer: {clip_norm: .nan}"), "finite.*clip_norm=nan"),
}

NO_CONFIG = {
    "no experiment": (b"a: b", "`experiment` must be one of"),
    "experiment list": (text(experiment="[x]"), r"Received: experiment=\['x'\]"),
    "experiment mapping": (
        text(experiment="{x: y}"),
        "Received: experiment={'x': 'y'}",
    ),
    "experiment number": (text(experiment="3"), "Received: experiment=3"),
    "long experiment": (text(experiment="x" * 4000), "`experiment` must be one of"),
    "unknown key": (text("x" * 199 + ": 1"), "Unknown key `xxx"),
    "choice list": (text("precision: [float32]"), "`precision` must be one of"),
    "choice mapping": (text("data: {name: {a: b}}"), "`data.name` must be one of"),
    "empty text": (
        text("data: {directory: ''}"),
        "a string that is not empty, or null",
    ),
    "long text": (
        text(phases=f"phases: [{{epochs: 1, name: {'n' * 300}}}]"),
        "`phases.0.name` must be a string .* of at most 64 characters",
    ),
    "filters": (
        text(model=MODEL.replace("8", "1e12")),
        "`model.cell.filters` must be a number <= 16384. Received: filters=10000000000",
    ),
    "stem filters": (
        text(model=f"model: {{cell: {CELL}, stem: {{filters: 1000000000000}}}}"),
        "`model.stem.filters` must be an integer >= 1 and <= 16384",
    ),
    "evaluations": (
        text("evaluation: {budgets: [4, 1000000000000]}"),
        r"`evaluation.budgets.1` .* <= 10000. Received: budgets.1=1000000000000",
    ),
    "budgets": (text(f"evaluation: {{budgets: {[1] * 999}}}"), "at most 256 items"),
    "max_iter": (
        text(model=solver("{class_name: anderson, max_iter: 1000000000000}")),
        "`model.solver.max_iter` must be a number <= 10000",
    ),
    "epochs": (text(phases="phases: [{epochs: 9999999999}]"), "<= 1000000"),
    "batch": (text("data: {batch_size: 99999999999}"), "<= 1048576"),
    "examples": (text("data: {train_examples: 99999999999}"), "<= 2147483647"),
    "learning rate": (text("optimizer: {learning_rate: 1e300}"), r"<= 1e\+38"),
    "clip norm": (text("optimizer: {clip_norm: 1e300}"), r"> 0 and <= 1e\+18, or null"),
    "solver config": (
        text(model=solver("{class_name: anderson, config: {max_iter: 3}}")),
        "`model.solver.config` .* stand beside its `class_name`",
    ),
    "solver class list": (text(model=solver("{class_name: [a]}")), "`model.solver`"),
    "solver list": (text(model=solver("[anderson]")), "`model.solver`"),
    "solver argument": (
        text(model=solver("{class_name: anderson, history: [[1]]}")),
        r"`model.solver.history.0` .*Received: history.0=\[1\]",
    ),
    "inherited with arguments": (
        text(phases="phases: [{epochs: 1, solver: {class_name: inherit, tol: 1}}]"),
        "or 'inherit' alone",
    ),
    "long variant": (text(f"variants: {{{'x' * 100}: {{}}}}"), "at most 64 characters"),
    "variant path": (text("variants: {../up: {}}"), "keys that match|keys match"),
    "variants of one name": (text("variants: {a: {}, A: {}}"), "more than their case"),
    "variant of variants": (
        text("variants: {a: {variants.b: {}}}"),
        "`variants.a` cannot change `variants`",
    ),
    "variant number": (text("variants: {a: 0}"), "`variants.a` must be a mapping"),
    "variant place": (text("variants: {a: {seed.x: 1}}"), "variant `a`: `seed` has no"),
    "variant deep": (
        text(f"variants: {{a: {{model.solver{'.x' * 60}: 1}}}}"),
        "variant `a`: .*nested more than 32",
    ),
    "many variants": (
        text(f"variants: {{{', '.join(f'v{i}: {{}}' for i in range(101))}}}"),
        "`variants` must be a mapping of at most 100 items. Received: 101",
    ),
    "shapes": (
        "experiment: mdeq_segmentation\nmodel: {filters: [8]}\nphases: [{epochs: 1}]\n"
        "data: {train_examples: 1000000}",
        "the shapes are held in memory",
    ),
    "window": (
        "experiment: mdeq_segmentation\nmodel: {filters: [8]}\nphases: [{epochs: 1}]\n"
        "evaluation: {window: [8]}",
        "`evaluation.window` must be a list of 2 elements",
    ),
    "scales": (
        "experiment: mdeq_segmentation\nphases: [{epochs: 1}]\n"
        f"model: {{filters: {[8] * 20}}}",
        "at most 8 items",
    ),
    "never validated": (
        "experiment: language_model\nphases: [{epochs: 1}, {epochs: 2}]\n"
        "model: {hidden_dim: 8, num_heads: 2, intermediate_dim: 8}\n"
        "evaluation: {every_epochs: 4}",
        "`evaluation.every_epochs` must be at most 3",
    ),
    "repeated seeds": (
        "experiment: synthetic\nmodel: {}\nphases: [{epochs: 1}]\nseeds: [0, 1, 0]",
        r"`seeds` must be a list without repetitions. Received: seeds=\[0, 1, 0\]",
    ),
}


@pytest.mark.parametrize(
    ("content", "words"),
    [*NO_YAML.values(), *NO_CONFIG.values()],
    ids=[*NO_YAML, *NO_CONFIG],
)
def test_is_refused_in_words(tmp_path, content, words):
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refusal(path)
    assert re.search(words, message)
    assert str(path) in message


@pytest.mark.parametrize("name", ["", "none.yaml", "x" * 300, "a\0b"])
def test_what_is_no_file_is_refused(tmp_path, name):
    assert "Cannot read the config" in refusal(f"{tmp_path}/{name}")


OVERRIDES = {
    "no value": ("seed", "a.b=value"),
    "near key": ("optimizer.learning_rat=3", "`optimizer.learning_rate`"),
    "nothing": ("=", "a.b=value"),
    "empty part": ("model..solver=x", "a.b=value"),
    "long path": (f"{'x.' * 3000}x=1", "at most 200 characters"),
    "deep path": (f"model.solver{'.x' * 60}=1", "nested more than 32 levels"),
    "through a number": ("seed.a.b=1", "`seed` has no parts. Received: seed=0"),
    "through a boolean": ("jit_compile.a=1", "`jit_compile` has no parts"),
    "through a choice": ("data.name.a=1", "`data.name` must be one of"),
    "index": ("phases.7.epochs=1", "`phases.7` must be an index below 1"),
    "negative index": ("phases.-1.epochs=1", "must be an index below 1"),
    "name as index": ("phases.a=1", "must be an index below 1"),
    "superscript as index": ("phases.².epochs=1", "must be an index below 1"),
    "mapping to a scalar": ("data=3", "`data` must be a mapping"),
    "scalar to a mapping": ("seed={a: b}", "`seed` must be an integer"),
    "experiment": ("experiment=synthetic", r"one of \['classification'\]"),
    "empty value": ("seed=", "`seed` must be an integer"),
    "huge value": (f"seed={'9' * 300}", "an integer of about 300 digits"),
    "long value": (f"data.directory={'x' * 9000}", "4096 characters"),
    "bad value": ("seed=[", r"--set seed=\["),
    "date": ("seed=2024-13-45", "timestamp.*in quotes"),
    "recursive": ("data=&d {x: *d}", "does it hold itself"),
    "not text": ("data.directory=\udcff", "--set data.directory"),
}


@pytest.mark.parametrize(("override", "words"), OVERRIDES.values(), ids=OVERRIDES)
def test_override_is_refused_in_words(tmp_path, override, words):
    path = tmp_path / "config.yaml"
    path.write_text(text())
    assert re.search(words, refusal(path, [override]))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_a_plain_value_in_python_is_refused_or_taken(small, value):
    for change in ({"experiment": value}, {"model": value}, {"variants": {"a": value}}):
        try:
            configs.resolve({**small, **change})
        except InputError as error:
            assert len(str(error)) < 1000


def test_python_cycles_are_refused(small):
    small["data"]["augmentation"] = small
    with pytest.raises(InputError, match="does it hold itself"):
        configs.resolve(small)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_mutated_config_is_refused_or_a_config(path):
    generator = random.Random(path.stem)
    sources = configs.read_yaml(path), configs.to_mapping(configs.load(path))
    start = time.perf_counter()
    for _ in range(40):
        tree = mutated(generator.choice(sources), generator)
        try:
            configs.resolve(tree)
        except InputError as error:
            assert len(str(error)) < 1000
    assert time.perf_counter() - start < 20


ODD = ["1e5", "1.5e3", "1_000", "1:30", "010", "null", "~", "yes", "=", "<<", "- a"]
ODD += ["2024-01-01", " a ", "'", '"', "a: b", "#a", "&a", "*a", "!a", "%a", "@a"]
ODD += ["[", "{", "é", "\U0001f600", "\u2028x", "\ufeffx", "\\", "a" * 4000, "a " * 99]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])
def test_odd_text_survives_the_work_directory(tmp_path, small, value):
    small["data"]["directory"] = value
    assert_survives(configs.resolve(small), tmp_path)


@pytest.mark.parametrize("name", ["1e5", "1_000", "010", "null", "yes", "2024-01-01"])
def test_odd_names_survive_the_work_directory(tmp_path, small, name):
    small["variants"] = {name: {"optimizer.learning_rate": 1e-05}}
    assert_survives(configs.resolve(small), tmp_path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs_survive_the_work_directory(tmp_path, path):
    assert_survives(configs.load(path), tmp_path)


def assert_survives(config, folder):
    path = folder / "config.yaml"
    path.write_text(configs.to_yaml(config), encoding="utf-8")
    assert configs.load(path) == config


@pytest.mark.parametrize(
    "number", ["1e-3", "1.0e-3", "1.e-3", ".1e-2", "1E-3", "1.0E-03"]
)
def test_numbers_may_have_an_exponent(tmp_path, number):
    path = tmp_path / "config.yaml"
    path.write_text(text(f"optimizer: {{learning_rate: {number}}}"))
    assert configs.load(path).optimizer.learning_rate == 1e-3
    assert configs.load(path, ["optimizer.clip_norm=1.5e3"]).optimizer.clip_norm == 1500


def test_an_alias_stands_for_a_copy(tmp_path):
    path = tmp_path / "config.yaml"
    changes = "{optimizer: &o {learning_rate: 0.1}}"
    path.write_text(text(f"variants: {{a: {changes}, b: {{optimizer: *o}}}}"))
    config = configs.load(path, ["variants.a.optimizer.learning_rate=0.2"])
    assert configs.variant(config, "a").optimizer.learning_rate == 0.2
    assert configs.variant(config, "b").optimizer.learning_rate == 0.1
