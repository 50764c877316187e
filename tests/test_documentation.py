"""Runs the examples of the README, of the docs and of the docstrings; looks for what
they name."""

import doctest
import importlib
import itertools
import json
import pathlib
import pkgutil
import re
import runpy
import shlex

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from training import cli
from training.config import reading, shipped

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(deq_keras.__path__, "deq_keras.")
    if not module.ispkg
)


def blocks(page, language):
    """Returns the fenced blocks of a page in a language."""
    return [code for name, code in BLOCK.findall(PAGES[page]) if name == language]


def commands():
    """Yields page and text of every command that a page shows with its config."""
    for page, text in PAGES.items():
        shown = [line for code in blocks(page, "sh") for line in code.splitlines()]
        shown += re.findall(r"`(deq-keras (?:train|reproduce) [a-z].*?)`", text)
        for line in shown:
            _, found, command = line.rpartition("deq-keras ")
            if found:
                yield page, command


# These take long.
LONG = {
    "docs/guides/choose.md",
    "docs/guides/first_model.md",
    "docs/guides/how_do_i.md",
    "docs/guides/language.md",
    "docs/guides/searches.md",
    "docs/guides/serving.md",
    "docs/guides/tensorboard.md",
    "docs/guides/troubleshooting.md",
    "docs/guides/vision.md",
    "deq_keras.callbacks.equilibrium_diagnostics",
    "deq_keras.callbacks.step_size_tuning",
    "deq_keras.callbacks.penalty_target",
    "deq_keras.layers.vision.multiscale_cell",
    "deq_keras.models.continuous_batching.continuous_batching_model",
    "deq_keras.models.deq_transformer.deq_transformer_causal_lm",
    "deq_keras.models.mdeq.mdeq_backbone",
    "deq_keras.models.mdeq.mdeq_image_classifier",
    "deq_keras.models.mdeq.mdeq_image_segmenter",
    "deq_keras.serving.litert",
    "deq_keras.serving.warm_start_model",
    "deq_keras.testing.components",
}


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
    names = {"__name__": "page"}
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), names)


@pytest.mark.parametrize(("page", "command"), list(commands()))
def test_command_is_one(page, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    arguments = cli.parser().parse_args(shlex.split(command, comments=True))
    if hasattr(arguments, "config"):
        reading.load(shipped.find(arguments.config), arguments.overrides)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_tested(page):
    blocks = BLOCK.findall(PAGES[page])
    assert {language for language, _ in blocks} <= {"python", "sh"}
    assert PAGES[page].count("```") == 2 * len(blocks)


@pytest.mark.slow
def test_notebook_runs(tmp_path, monkeypatch):
    path = DOCS / "notebooks" / "first_equilibrium.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    run = runpy.run_path(str(DOCS / "run_notebook.py"))["run"]
    monkeypatch.chdir(tmp_path)
    outputs, names = run(notebook)
    assert _kinds(outputs) == _kinds(cell["outputs"] for cell in cells)
    for name, model in names["models"].items():
        # Training, prediction and a solve with the trained budget agree.
        of_training = names["logs"][name]["accuracy"][-1]
        data = (names["x_test"], names["y_test"])
        of_test = model.evaluate(*data, verbose=0, return_dict=True)["accuracy"]
        curve = dict(zip(names["budgets"], names["curves"][name], strict=True))
        assert min(of_training, of_test, curve[12], curve[30]) > 0.97


def _kinds(outputs):
    return [[output["output_type"] for output in shown] for shown in outputs]


def test_figures_are_drawn_from_a_run(tmp_path):
    (tmp_path / "config.yaml").write_bytes(
        (ROOT / "configs" / "digits" / "main.yaml").read_bytes()
    )
    row = {"budget": 1, "accuracy": 0.5, "residual": 0.1, "q25": 1, "q50": 1, "q75": 1}
    evaluation = {"parameters": 1, "budgets": [row]}
    diagnosis = {
        "residual_quantiles": [row],
        "spectral_radius": {"mean": None, "converged": 0.0},
        **{"evaluations": 1, "residual": 0.1, "converged": 1},
    }
    variants = ("plain", "jacobian", "contraction")
    for variant, seed in itertools.product(variants, range(3)):
        folder = tmp_path / variant / f"seed_{seed}"
        folder.mkdir(parents=True)
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
        (folder / "diagnosis.json").write_text(json.dumps(diagnosis))
    runpy.run_path(str(DOCS / "make_figures.py"))["main"](tmp_path, tmp_path)
    for name in ("accuracy.svg", "residuals.svg"):
        assert "<svg" in (tmp_path / name).read_text()


def test_figures_of_results_are_drawn_from_their_tables(tmp_path):
    script = runpy.run_path(str(DOCS / "make_results_figures.py"))
    script["main"](tmp_path)
    for name in script["FIGURES"]:
        drawn = tmp_path / f"{name}.svg"
        assert "<svg" in drawn.read_text()
        assert (DOCS / "images" / drawn.name).exists()
    assert script["header"]("language", "| | NFE 2")[:3] == [2, 4, 6]
    first, *_ = script["table"]("copy_memory", "| | weights")
    assert script["values"](first[4]) == [float(first[4])]
    assert script["values"]("1.4e-5 ± 2e-6")[0] == 1.4e-5


@pytest.mark.slow
def test_pictures_of_reasoning_are_drawn_from_the_presets(tmp_path):
    script = runpy.run_path(str(DOCS / "make_reasoning_pictures.py"))
    script["main"](tmp_path)
    for name in script["PICTURES"]:
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
        assert (DOCS / "images" / f"{name}.svg").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if "docs/results/" in page])
def test_results_have_a_figure_and_narrow_tables(page):
    assert re.search(r"!\[[^]]+\]\(\.\./images/", PAGES[page])
    # More columns do not fit into 1280 pixels.
    for line in PAGES[page].splitlines():
        assert not line.startswith("|-") or line.count("|") <= 13, line


def test_the_gallery_shows_every_image():
    shown = re.findall(r"\]\(images/([\w.]+)", PAGES["docs/gallery.md"])
    assert sorted(shown) == sorted(path.name for path in (DOCS / "images").iterdir())


@pytest.mark.parametrize(
    "image", sorted((DOCS / "images").iterdir()), ids=lambda image: image.name
)
def test_images_are_small(image):
    assert image.stat().st_size < 150_000


def test_readme_is_short():
    assert len(PAGES["README.md"].split()) <= 900


@pytest.mark.parametrize(
    "package", [name for name in deq_keras.__all__ if name.islower()]
)
def test_reference_has_every_public_name(package):
    names = re.findall(r"^::: (\S+)$", "\n".join(PAGES.values()), re.MULTILINE)
    package = f"deq_keras.{package}"
    if package == "deq_keras.converters":
        package += ".locuslab"
    public = importlib.import_module(package).__all__
    assert {name for name in names if name.rpartition(".")[0] == package} == {
        f"{package}.{name}" for name in public
    }


@pytest.mark.parametrize("page", [page for page in PAGES if "docs/results/" in page])
def test_tables_say_where_they_come_from(page):
    sections = re.split(r"^##+ ", PAGES[page], flags=re.MULTILINE)
    with_numbers = [text for text in sections if re.search(r"^\|.*\d", text, re.M)]
    for text in with_numbers:
        for word in ("Command", "Commit", "Machine", "Spread"):
            assert f"* **{word}**: " in text, text[:80]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]):
        if not link.startswith("http"):
            assert (ROOT / page).parent.joinpath(link).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page):
    """What a page names in running text: our modules and their parts, and files."""
    text = BLOCK.sub("", PAGES[page])
    for name in re.findall(r"`((?:deq_keras|training)(?:\.\w+)+)", text):
        pkgutil.resolve_name(name)
    for path in re.findall(r"`((?:\.ci|configs|docs|training)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    "words",
    [
        "BatchNormalization",
        "early stopping",
        "time series",
        "variable length",
        "LoRA",
        "quantization",
        "custom train_step",
        "KerasTuner",
        "two GPUs",
        "Slurm",
    ],
)
def test_a_search_finds_the_answer(words):
    headings = re.findall(r"^## (.*)$", PAGES["docs/guides/how_do_i.md"], re.M)
    assert any(words in heading for heading in headings)


@pytest.mark.parametrize("name", slow_if_long(MODULES))
def test_docstring_examples_hold(name):
    names = {"deq_keras": deq_keras, "keras": keras, "np": np, "tf": tf}
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(module, extraglobs=names, optionflags=flags)
    assert result.failed == 0


@pytest.mark.parametrize(
    "test",
    [
        line
        for line in (ROOT / ".ci" / "slow.txt").read_text().splitlines()
        if not line.startswith("#")
    ],
)
def test_slow_test_of_ci_exists(test):
    """A new name would show at the end of a long run only. A line may be a file."""
    path, *names = test.split("::")
    text = (ROOT / path).read_text()
    for name in names[-1:]:
        assert f"def {name.split('[')[0]}(" in text


def test_ci_runs_in_the_environment_of_a_user():
    assert not re.search(r"^ *export ", (ROOT / ".ci" / "run").read_text(), re.M)
