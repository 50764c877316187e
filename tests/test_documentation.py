"""Runs the examples of the README and of the docstrings; looks for tests by name."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(deq_keras.__path__, "deq_keras.")
    if not module.ispkg
)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_example_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("name", MODULES)
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
    """A new name would show at the end of a long run only."""
    path, *_, name = test.split("::")
    assert f"def {name.split('[')[0]}(" in (ROOT / path).read_text()
