"""Sets what pages share: the address of the repository and the order of searches.

A hook of MkDocs.
"""

import configparser
from pathlib import Path

_ROOT = Path(__file__).parents[1]
# Factors of the scores of pages in a search: guides come first. The front matter of a
# page can set another factor.
_BOOSTS = {
    "api": 0.1,
    "changelog.md": 0.1,
    "gallery.md": 0.1,
    "notebooks": 0.3,
    "results": 0.3,
}


def on_config(config):
    """Links the repository in the head of every page."""
    config.repo_url, config.repo_name = repository(), "Repository"
    return config


def on_page_markdown(markdown, *, page, **kwargs):
    """Fills in the address of the repository, and sets the boost of a page."""
    place = page.file.src_uri.partition("/")[0]
    if place in _BOOSTS:
        page.meta.setdefault("search", {"boost": _BOOSTS[place]})
    return markdown.replace("<this repository>", repository())


def repository():
    """Returns the address in `setup.cfg`, the only place that has it."""
    parser = configparser.ConfigParser()
    parser.read(_ROOT / "setup.cfg")
    return parser["metadata"]["url"]
