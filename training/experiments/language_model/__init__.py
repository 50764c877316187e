"""Trains the variants of a DEQ-Transformer language model and compares them."""

from training.experiments.language_model.study import run

__all__ = ["run"]
