"""Deep equilibrium models for Keras."""

import importlib
from typing import Any

from deq_keras.core.backend import check_backend

check_backend()  # Keras would fail in words of the other backend.

from deq_keras import (  # noqa: E402
    callbacks,
    diagnostics,
    gradients,
    initial_states,
    layers,
    losses,
    metrics,
    multistart,
    proximal,
    regularizers,
    solvers,
    tuning,
)
from deq_keras.layers import DEQ  # noqa: E402

del check_backend

__all__ = [
    "DEQ",
    "callbacks",
    "converters",
    "diagnostics",
    "gradients",
    "initial_states",
    "layers",
    "losses",
    "metrics",
    "models",
    "multistart",
    "proximal",
    "regularizers",
    "serving",
    "solvers",
    "testing",
    "tokenizers",
    "tuning",
]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    # Imported at their first use: most of these import KerasHub, which takes seconds.
    if name in ("converters", "models", "serving", "testing", "tokenizers"):
        return importlib.import_module(f"deq_keras.{name}")
    raise AttributeError(f"module 'deq_keras' has no attribute {name!r}")
