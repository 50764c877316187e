"""Converters from published checkpoints to models of this library."""

from deq_keras.converters import locuslab

__all__ = ["locuslab"]
