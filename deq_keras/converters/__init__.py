"""Weights of published checkpoints, into the models of this library."""

from deq_keras.converters import locuslab

__all__ = ["locuslab"]
