"""Documents functions, not the modules with the same name: a hook of MkDocs.

Griffe resolves `deq_keras.tuning.tune` to the module `tune.py`, not to the function
that its package imports.
"""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[1]


# After the sign of a documented object, or in a link to one.
_NAME = re.compile(r"(?:^::: |\]\[)(deq_keras[\w.]*\.(\w+))", re.MULTILINE)


def on_page_markdown(markdown, **kwargs):
    """Returns the text of a page with the full paths of these functions."""
    return _NAME.sub(_path, markdown)


def _path(match):
    is_module = (_ROOT / match[1].replace(".", "/")).with_suffix(".py").exists()
    return f"{match[0]}.{match[2]}" if is_module else match[0]
