"""Builds the site, and types words into it. Needs the extra `docs`."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
pytestmark = pytest.mark.slow

LINES = (ROOT / "tests" / "site_queries.txt").read_text(encoding="utf-8").splitlines()
# Words that a newcomer types, and the page that must come first.
QUERIES = dict(line.split(": ") for line in LINES if not line.startswith("#"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return folder


def test_search_finds_what_a_newcomer_types(site):
    """Scores sections and groups them by page, like the theme."""
    lunr = pytest.importorskip("lunr")
    index = json.loads((site / "search" / "search_index.json").read_text())
    boosts = {name: field["boost"] for name, field in index["config"]["fields"].items()}
    builder = lunr.get_default_builder("en")
    builder.pipeline.reset()
    builder.search_pipeline.reset()
    builder.b(0)
    builder.ref("location")
    for name in ("title", "text"):
        builder.field(name, boosts[name])
    for section in index["docs"]:
        text = re.sub("<[^>]*>", " ", section["text"])
        attributes = {"boost": section.get("boost", 1)}
        builder.add({**section, "text": text}, attributes)
    searched = builder.build()
    found = {query: _first(searched, query) for query in QUERIES}
    assert found == QUERIES


def _first(searched, query):
    """Returns the page with the section that has the largest score."""
    words = query.split()
    pages = {}
    for result in searched.search(" ".join(f"{word}*" for word in words)):
        page, _, section = result["ref"].partition("#")
        terms = result["match_data"].metadata
        matched = sum(any(term.startswith(word) for term in terms) for word in words)
        score = result["score"] * (1 + (matched / len(words) + (not section)) ** 2)
        pages[page] = max(pages.get(page, 0), score)
    return max(pages, key=pages.get, default="").rstrip("/")
