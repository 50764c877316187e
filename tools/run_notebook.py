"""Runs a notebook without Jupyter, and writes it back with what its cells show.

    python tools/run_notebook.py docs/notebooks/first_equilibrium.ipynb

Needs matplotlib beside the library. Cells run in order in one namespace, in a temporary
folder.
"""

import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402


def run(notebook):
    """Returns the outputs of the code cells, a list for each, and a dict of the names.

    Args:
        notebook: what `json.load` returns for an `.ipynb` file.
    """
    pyplot.close("all")  # Figures of the caller are not outputs of a cell.
    names = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run_cell("".join(cell["source"]), names) for cell in cells], names


def _run_cell(source, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<cell>", "exec"), names)
    outputs = []
    if text := printed.getvalue():
        lines = text.splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    outputs += [_draw(pyplot.figure(number)) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return outputs


def _draw(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    picture = base64.b64encode(file.getvalue()).decode()
    return {
        "output_type": "display_data",
        "data": {"image/png": picture},
        "metadata": {},
    }


def main(path):
    """Runs a notebook and writes it back with its outputs."""
    path = Path(path).resolve()
    notebook = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outputs, _ = run(notebook)
        os.chdir(path.parent)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, shown) in enumerate(zip(cells, outputs, strict=True), start=1):
        cell.update(outputs=shown, execution_count=number)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
