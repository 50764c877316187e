"""Deep equilibrium models for Keras."""

from deq_keras import diagnostics, gradients, layers, metrics, regularizers, solvers

__all__ = [
    "diagnostics",
    "gradients",
    "layers",
    "metrics",
    "regularizers",
    "solvers",
]
__version__ = "0.1.0"
