"""Deep equilibrium models for Keras."""

import importlib
import os
import sys

# `deq-keras` and `python -m deq_keras.training` import this package, and with it
# TensorFlow, before they run a line of their own.
_program = os.path.basename("".join(sys.argv[:1]))
_is_module = _program == "-m" and "deq_keras.training" in sys.orig_argv
if _program == "deq-keras" or _is_module:
    importlib.import_module("deq_keras.training.cli.notices").hide()

from deq_keras import (  # noqa: E402
    callbacks,
    diagnostics,
    gradients,
    initial_states,
    layers,
    metrics,
    multistart,
    proximal,
    regularizers,
    solvers,
)

__all__ = [
    "callbacks",
    "converters",
    "diagnostics",
    "gradients",
    "initial_states",
    "layers",
    "metrics",
    "models",
    "multistart",
    "proximal",
    "regularizers",
    "serving",
    "solvers",
    "tokenizers",
]
__version__ = "0.1.0"


def __getattr__(name):
    # These import KerasHub, which takes seconds: at their first use.
    if name in ("converters", "models", "serving", "tokenizers"):
        return importlib.import_module(f"deq_keras.{name}")
    raise AttributeError(f"module 'deq_keras' has no attribute {name!r}")
