"""Each tool of docs/guides/tools.md works with a DEQ, or is refused in words."""

import re
import runpy
from pathlib import Path

import pytest

from deq_keras.serving import ExportError

ROOT = Path(__file__).parents[1]
TOOLS = runpy.run_path(str(ROOT / "tools" / "trials.py"))["TOOLS"]


def _rows():
    """Returns the results on the page by tool: `works`, or words of the refusal."""
    lines = (ROOT / "docs" / "guides" / "tools.md").read_text("utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {name: result for name, _, result in cells if name in TOOLS}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("index", range(len(TOOLS)), ids=[*TOOLS])
def test_tool(index, tmp_path):
    name, run = [*TOOLS.items()][index]
    expected = _rows()[name]
    try:
        if expected == "works":
            run(tmp_path)
            return
        with pytest.raises((ValueError, NotImplementedError, ExportError)) as error:
            run(tmp_path)
    except ImportError as missing:
        pytest.skip(str(missing))
    for word in re.findall("`([^`]+)`", expected):
        assert word in str(error.value)


def test_every_tool_has_a_row():
    assert [*_rows()] == [*TOOLS]
