"""The text of a language model, as segments of token ids."""

from typing import NamedTuple

import keras_hub
import numpy as np

import deq_keras

from ...data import text
from ...errors import InputError


class Text(NamedTuple):
    """A text in ids.

    Attributes:
        tokenizer: the KerasHub `Tokenizer` of the ids.
        train: int32 array `(num_tokens,)`.
        validation: int32 array `(num_tokens,)`.
        test: int32 array `(num_tokens,)`; may be empty.
    """

    tokenizer: keras_hub.tokenizers.Tokenizer
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def load(config, cache=None):
    """Returns the `Text` of a `TextConfig`.

    Args:
        config: the `TextConfig`.
        cache: optional folder that keeps the vocabulary.

    Raises:
        InputError: If the text or the validation text does not exist.
    """
    loaded, keep = find(config, cache)
    if cache is not None:
        keep(cache)
    return loaded


def find(config, cache=None):
    """Returns what `load` does, but writes no cache, and a function of a folder that
    does it."""
    corpus = _corpus(config)
    if not corpus.validation:
        raise InputError(f"The text {config.path or config.source} has no validation.")
    tokenizer, keep = text.find_tokenizer(
        config.tokens,
        corpus.train,
        cache,
        config.lower_case,
        config.minimum_count,
        config.vocabulary_size,
    )
    ids = (text.encode(tokenizer, split) for split in corpus)
    return Text(tokenizer, *ids), keep


def training_segments(config, ids, first_epoch=0):
    """Returns the examples of the epochs from `first_epoch` on.

    All segments have the same length. Without `steps_per_epoch`, one iteration over
    the dataset is an epoch; with it the dataset has no end.
    """
    segments = text.segments(ids, config.batch_size, config.length, drop_remainder=True)
    if config.steps_per_epoch is not None:
        start = first_epoch * config.steps_per_epoch % int(segments.cardinality())
        segments = segments.repeat().skip(start)
    return segments.map(deq_keras.models.NextTokenLossModel.examples)


def steps_per_epoch(config, ids):
    """Returns the number of training steps of an epoch."""
    return config.steps_per_epoch or int(training_segments(config, ids).cardinality())


def evaluation_segments(config, ids):
    """Returns the examples of an evaluation, its last segment shorter."""
    segments = text.segments(
        ids, config.evaluation_batch_size, config.evaluation_length
    )
    return segments.map(deq_keras.models.NextTokenLossModel.examples)


def sample_segments(ids, num_samples, length):
    """Returns the first segments of a text, int32 `(num_samples, length)`; fewer or
    shorter ones of a short text."""
    length = min(length, len(ids))
    num_samples = min(num_samples, len(ids) // length)
    return ids[: num_samples * length].reshape(num_samples, length)


def _corpus(config):
    if config.source in ("file", "directory") and config.path is None:
        raise InputError(
            f"`data.source: {config.source}` needs a `data.path`. Received: path=null."
        )
    if config.source == "embedded":
        return text.embedded()
    if config.source == "file":
        return text.from_file(config.path, config.validation_fraction)
    if config.source == "directory":
        return text.from_directory(config.path)
    return text.from_tfds(config.source, config.path, config.max_examples)
