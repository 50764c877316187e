"""Keeps a mean and its deviation on one line: a hook of MkDocs."""

import re


def on_page_content(html, **kwargs):
    """Returns the HTML of a page with unbreakable spaces around every ±."""
    return re.sub(r"\s±\s", "\u00a0±\u00a0", html)
