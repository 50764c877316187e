"""Checks what pages point to: anchors, commits, and packages to install."""

import pathlib
import re
import runpy
import subprocess
import unicodedata

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def links(text):
    """Yields page (empty for the same page) and anchor of every link with an anchor."""
    for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", FENCED.sub("", text)):
        page, _, anchor = link.partition("#")
        if anchor and not page.startswith("http"):
            yield page, anchor


def anchors(text):
    """Returns the anchors that MkDocs makes of headings. Repeated ones get a number."""
    found = []
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)  # links in headings
        ascii_only = unicodedata.normalize("NFKD", shown).encode("ascii", "ignore")
        words = re.sub(r"[^\w\s-]", "", ascii_only.decode()).strip().lower()
        anchor = name = re.sub(r"[-\s]+", "-", words)
        repeated = 0
        while anchor in found:
            repeated += 1
            anchor = f"{name}_{repeated}"
        found.append(anchor)
    return found


def dead_links(page, text):
    """Returns the links of a page whose anchor is not a heading."""
    dead = []
    for name, anchor in links(text):
        target = (page.parent / name).resolve() if name else page
        # mkdocstrings makes these anchors of docstrings.
        if not anchor.startswith("deq_keras.") and anchor not in anchors(
            text if target == page else target.read_text(encoding="utf-8")
        ):
            dead.append(f"{name}#{anchor}")
    return dead


def test_anchors_of_links_are_headings():
    for page in PAGES:
        assert not dead_links(page, page.read_text(encoding="utf-8")), page


def test_dead_anchors_are_found():
    """Of a link within a page and of a link to another page."""
    page = ROOT / "docs" / "index.md"
    text = "# Two `words`\n[a](#two-words) [b](#two) [c](results/costs.md#generation)"
    assert dead_links(page, text) == ["#two", "results/costs.md#generation"]


def git(*arguments, **options):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.fixture
def whole_history():
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs the whole history")


@pytest.mark.usefixtures("whole_history")
def test_commits_exist():
    """Those that pages state as the origin of numbers."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    names = set(re.findall(r"\b(?=\w*[a-f])(?=\w*\d)[0-9a-f]{7}\b", text))
    kinds = git("cat-file", "--batch-check", input="\n".join(sorted(names))).stdout
    assert len(names) > 20
    found = {line.split()[0][:7] for line in kinds.splitlines() if " commit " in line}
    assert names - found == set()


@pytest.mark.usefixtures("whole_history")
def test_stale_results_refuses_unknown_commits():
    script = runpy.run_path(str(ROOT / "tools" / "stale_results.py"))
    pages = {page.name: page for page in (ROOT / "docs" / "results").glob("*.md")}
    for name in script["PATHS"]:
        text = pages[name].read_text(encoding="utf-8")
        section, commit = next(script["stated_commits"](text))
        assert section and git("cat-file", "-e", commit).returncode == 0, name
    assert script["num_commits_since"](commit, ["deq_keras"]) > 0
    with pytest.raises(ValueError, match="commit='0000000'"):
        script["num_commits_since"]("0000000", ["deq_keras"])


def test_pages_install_from_a_clone():
    """The package is not published: its name may be somebody else's."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install \S*deq.keras", text), page
