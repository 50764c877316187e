"""Runs the examples of the README, of the docs and of the docstrings; looks for what
they name."""

import contextlib
import doctest
import importlib
import inspect
import io
import json
import pathlib
import pkgutil
import re
import runpy
import shlex
import types
from decimal import Decimal

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

import deq_keras
from deq_keras.models.kerashub import FOLDER
from training import cli
from training.config import reading, shipped

pytestmark = pytest.mark.usefixtures("full_float32")

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A Python block, and what it prints: the text block directly after it.
EXAMPLE = re.compile(
    r"^```python\n(.*?)^```(?:\n+```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE
)
DECIMAL = re.compile(r"\d+\.\d*(?:e[+-]?\d+)?")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "deq_keras").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def blocks(page, language):
    """Returns the fenced blocks of a page in a language."""
    return [code for name, code in BLOCK.findall(PAGES[page]) if name == language]


def commands():
    """Yields the arguments of every `deq-keras` command that a page shows."""
    for page, text in PAGES.items():
        shown = [line for code in blocks(page, "sh") for line in code.splitlines()]
        shown += re.findall(r"`(deq-keras (?:train|reproduce) [a-z].*?)`", text)
        for line in shown:
            _, found, command = line.rpartition("deq-keras ")
            if found:
                yield command


LONG = (ROOT / "tests" / "long_examples.txt").read_text(encoding="utf-8").splitlines()


def slow_if_long(names):
    return [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in names
    ]


@pytest.mark.parametrize(
    "page", slow_if_long(page for page in PAGES if blocks(page, "python"))
)
def test_examples_of_a_page_run(page, tmp_path, monkeypatch):
    """In order, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    run_examples(PAGES[page], page)


@pytest.mark.slow
@pytest.mark.parametrize(
    "card", sorted(FOLDER.glob("*/README.md")), ids=lambda card: card.parent.name
)
def test_examples_of_a_model_card_run(card):
    run_examples(card.read_text(encoding="utf-8"), card.parent.name)


def run_examples(text, page):
    """Runs the Python blocks of a page, and compares what they print with the page.

    Numbers must agree in the decimals that the page shows, but for one in the last. As
    in doctests, `...` matches any text.
    """
    names = {"__name__": "page"}
    for code, expected in EXAMPLE.findall(text):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, page, "exec"), names)
        if expected:
            shown = iter(DECIMAL.findall(expected))
            found = DECIMAL.sub(
                lambda one, shown=shown: _nearby(one[0], next(shown, one[0])),
                printed.getvalue(),
            )
            is_same = doctest.OutputChecker().check_output(expected, found, FLAGS)
            assert is_same, f"{page} shows\n{expected}but prints\n{found}"


def _nearby(number, shown):
    """Returns the number that a page shows if another one differs by rounding."""
    decimals = -Decimal(shown).as_tuple().exponent
    is_near = abs(Decimal(number) - Decimal(shown)) <= Decimal(10) ** -decimals
    return shown if is_near else number


def test_commands_are_valid(monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in commands():
        arguments = cli.parser().parse_args(shlex.split(command, comments=True))
        if hasattr(arguments, "config"):
            reading.load(shipped.find(arguments.config), arguments.overrides)


def test_blocks_have_a_language_that_is_tested():
    for page, text in PAGES.items():
        languages = [language for language, _ in BLOCK.findall(text)]
        assert set(languages) <= {"python", "sh", "text"}, page
        assert text.count("```") == 2 * len(languages), page
        outputs = [output for _, output in EXAMPLE.findall(text) if output]
        assert languages.count("text") == len(outputs), page


def test_links_and_names_exist():
    """Names of modules, their parts and files, in running text."""
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            is_external = link.startswith(("http", "<this repository>"))
            assert is_external or (ROOT / page).parent.joinpath(link).exists(), link
        text = BLOCK.sub("", text)
        for name in re.findall(r"`((?:deq_keras|training)(?:\.\w+)+)", text):
            pkgutil.resolve_name(name)
        for path in re.findall(r"`((?:\.ci|configs|docs|training)/[\w./]*)`", text):
            assert (ROOT / path).exists(), path


def test_reference_has_every_public_name():
    names = re.findall(r"^::: (\S+)$", "\n".join(PAGES.values()), re.MULTILINE)
    for package in filter(str.islower, deq_keras.__all__):
        package = f"deq_keras.{package}"
        if package == "deq_keras.converters":
            package += ".locuslab"
        public = importlib.import_module(package).__all__
        listed = {name for name in names if name.rpartition(".")[0] == package}
        assert listed == {f"{package}.{name}" for name in public}


def test_listed_members_exist():
    """Members that pages of the reference list: MkDocs ignores unknown ones."""
    entry = r"^::: (\S+)\n    options:\n      members: \[(.*)\]$"
    found = re.findall(entry, "\n".join(PAGES.values()), re.MULTILINE)
    assert len(found) > 20
    for name, members in found:
        cls = pkgutil.resolve_name(name)
        for member in members.split(", "):
            assert inspect.getdoc(getattr(cls, member)), f"{name}.{member}"


def test_citation_has_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == deq_keras.__version__


def test_templates_and_workflows_parse():
    files = list((ROOT / ".github").rglob("*.yml"))
    assert len(files) >= 4
    for path in files:
        assert yaml.safe_load(path.read_text(encoding="utf-8")), path
    job = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]
    commands = [step.get("run") for step in job["run"]["steps"]]
    (command,) = filter(None, commands)
    assert (ROOT / command).stat().st_mode & 0o100  # It can be executed.


def test_every_config_key_has_a_meaning():
    script = runpy.run_path(str(ROOT / "tools" / "config_reference.py"))
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="api/config.md"))
    text = script["on_page_markdown"](PAGES["docs/api/config.md"], page=page)
    rows = re.findall(r"^\| `(.+?)` \|.*\| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 100 and all(meaning.endswith(".") for _, meaning in rows)
    assert {"phases.N.epochs", "model.explicit.network"} < dict(rows).keys()


def test_slow_tests_of_ci_exist():
    for line in (ROOT / ".ci" / "slow.txt").read_text().splitlines():
        if not line.startswith("#"):
            path, *names = line.split("::")  # A line may be a file.
            text = (ROOT / path).read_text()
            for name in names[-1:]:
                assert f"def {name.split('[')[0]}(" in text, line


@pytest.mark.slow
def test_notebook_runs(tmp_path, monkeypatch):
    path = DOCS / "notebooks" / "first_equilibrium.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    run = runpy.run_path(str(ROOT / "tools" / "run_notebook.py"))["run"]
    monkeypatch.chdir(tmp_path)
    outputs, names = run(notebook)
    assert _kinds(outputs) == _kinds(cell["outputs"] for cell in cells)
    for name, model in names["models"].items():
        # Training, prediction and a solve with the trained budget agree.
        of_training = names["logs"][name]["accuracy"][-1]
        data = (names["x_test"], names["y_test"])
        of_test = model.evaluate(*data, verbose=0, return_dict=True)["accuracy"]
        curve = dict(zip(names["budgets"], names["curves"][name], strict=True))
        assert min(of_training, of_test, curve[12]) > 0.97
        # Without a penalty, more evaluations than in training can lose accuracy.
        assert name != "regularized" or curve[30] > 0.99


def _kinds(outputs):
    return [[output["output_type"] for output in shown] for shown in outputs]


def test_figures_of_results_are_drawn(tmp_path):
    script = runpy.run_path(str(ROOT / "tools" / "make_results_figures.py"))
    figures = script["FIGURES"]
    for name, draw in figures.items():
        assert draw().axes
        assert (DOCS / "images" / f"{name}.svg").exists()
    script["pyplot"].close("all")
    for name in set(figures) - {"transport"}:
        del figures[name]
    script["main"](tmp_path)
    assert "<svg" in (tmp_path / "transport.svg").read_text()
    assert script["header"]("explicit", "| model | NFE 2")[:3] == [2, 4, 6]
    assert script["values"]("3.7e-5, 1,024") == [3.7e-5, 1024]
    assert script["values"]("1.4e-5 ± 2e-6")[0] == 1.4e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["concept", "reasoning"])
def test_pictures_are_drawn(kind, tmp_path):
    script = runpy.run_path(str(ROOT / "tools" / f"make_{kind}_pictures.py"))
    script["main"](tmp_path)
    for name in script["FIGURES" if kind == "concept" else "PICTURES"]:
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
        assert (DOCS / "images" / f"{name}.svg").exists()


@pytest.mark.parametrize("name", slow_if_long(MODULES))
def test_docstring_examples_run(name):
    names = {"deq_keras": deq_keras, "keras": keras, "np": np, "tf": tf}
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs=names, optionflags=FLAGS)
    assert result.failed == 0
