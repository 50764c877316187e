"""Runs the scripts of `examples/` as users do."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def test_scripts_are_short_and_shown():
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 60, script
        assert f'--8<-- "examples/{script.name}"' in page
    assert page.count("--8<--") == len(SCRIPTS) == 8


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_runs(script, tmp_path):
    process = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip()
