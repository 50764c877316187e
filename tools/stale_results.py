"""Lists the commits in docs/results that are older than the code that they measured.

    python tools/stale_results.py

Prints a line for each commit that a section states: the number of commits since then
that touched the measured code. Needs the whole git history.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CORE = [f"deq_keras/{name}" for name in ("core", "gradients", "layers", "solvers")]
LEARNING = [*CORE, "deq_keras/regularizers"]
# The code that each page measures; of other pages, the whole package.
PATHS = {
    "costs.md": [*CORE, "benchmarks"],
    "explicit.md": [*LEARNING, "deq_keras/models"],
    "gradients.md": LEARNING,
    "larger.md": [*CORE, "deq_keras/models", "training/experiments/reasoning"],
    "papers.md": [*LEARNING, "deq_keras/models", "benchmarks"],
    "penalties.md": LEARNING,
}

_LINES = re.compile(r"^##* (.*)|^ *\* \*\*Commit\*\*:(.*(?:\n +[^*\s].*)*)", re.M)
_HASH = re.compile(r"\b(?=\w*\d)[0-9a-f]{7,40}\b")


def stated_commits(text):
    """Yields section and hash for each commit in the "Commit" lines of a page."""
    section = ""
    for heading, commits in _LINES.findall(text):
        section = heading or section
        for commit in _HASH.findall(commits):
            yield section, commit


def num_commits_since(commit, paths):
    """Returns the number of commits after `commit` that touched `paths`."""
    command = ["git", "-C", str(ROOT), "log", "--oneline", f"{commit}..HEAD", "--"]
    run = subprocess.run([*command, *paths], capture_output=True, text=True)
    if run.returncode:
        raise ValueError(
            "Results must state commits of this repository. Received: "
            f"commit={commit!r}. Correct it, or fetch the whole history with "
            f"`git fetch --unshallow`. {run.stderr.strip()}"
        )
    return len(run.stdout.splitlines())


if __name__ == "__main__":
    for page in sorted((ROOT / "docs" / "results").glob("*.md")):
        for section, commit in stated_commits(page.read_text(encoding="utf-8")):
            count = num_commits_since(commit, PATHS.get(page.name, ["deq_keras"]))
            print(f"{page.name:12} {commit} {count:4} commits since: {section}")
