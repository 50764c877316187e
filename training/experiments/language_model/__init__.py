"""Trains the variants of a language model and compares them."""

from training import variants
from training.config import variant
from training.experiments.language_model.job import LanguageModelJob
from training.experiments.language_model.text import find


def run(config, directory):
    """Trains, measures and compares all variants; prints and saves the report.

    Args:
        config: the `LanguageModelConfig`.
        directory: its `WorkDirectory`. What is already finished in it is kept.
    """
    variants.run({name: job(directory, name) for name in config.variants}, directory)


def job(directory, name):
    """Returns the `LanguageModelJob` of a variant."""
    config = variant(directory.config, name)
    text, keep = find(config.data, directory.folder(name))
    return LanguageModelJob(config, text, keep)
