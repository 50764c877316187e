"""Sets the address of the repository, and which pages the site lists first.

A hook of MkDocs.
"""

import configparser
from pathlib import Path

_ROOT = Path(__file__).parents[1]
# Factors of the scores of pages, or of folders: guides come first.
_BOOSTS = {
    "api": 0.1,
    "changelog.md": 0.1,
    "gallery.md": 0.1,
    "glossary.md": 1.5,
    "guides/troubleshooting.md": 2,
    "notebooks": 0.3,
    "results": 0.3,
}


def on_config(config):
    """Links the repository in the head of every page."""
    config.repo_url, config.repo_name = repository(), "Repository"
    return config


def on_page_markdown(markdown, *, page, **kwargs):
    """Fills in the address of the repository, and sets the boost of a page."""
    path = page.file.src_uri
    boost = _BOOSTS.get(path, _BOOSTS.get(path.partition("/")[0], 1))
    page.meta["search"] = {"boost": boost}
    return markdown.replace("<this repository>", repository())


def repository():
    """Returns the address in `setup.cfg`, the only place that has it."""
    parser = configparser.ConfigParser()
    parser.read(_ROOT / "setup.cfg")
    return parser["metadata"]["url"]
