"""Public names that were renamed."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module whose public names were renamed.

    An old name works until the next minor version, and warns. A rename also needs a
    line in CHANGELOG.md.

    Args:
        module: String. `__name__` of the module.
        names: Mapping of old names to names in the module.

    Example:

    >>> from deq_keras.core.deprecations import renamed
    >>> __getattr__ = renamed("deq_keras.solvers", {"Picard": "FixedPointIteration"})
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"`{module}.{name}` is `{module}.{names[name]}` now. The next minor "
            "version will not have the old name.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(module), names[name])

    return find
