"""The text of a language model, as segments of token ids."""

from typing import Any, NamedTuple

import deq_keras
from training.data import text
from training.errors import InputError


class Text(NamedTuple):
    """A text in ids.

    Attributes:
        vocabulary: has `size`, `encode` and `decode`.
        train: int32 array `(num_tokens,)`.
        validation: int32 array `(num_tokens,)`.
        test: int32 array `(num_tokens,)`; may be empty.
    """

    vocabulary: Any
    train: Any
    validation: Any
    test: Any


def load(config, cache=None):
    """Returns the `Text` of a `TextConfig`.

    Args:
        config: the `TextConfig`.
        cache: optional folder that keeps the vocabulary.

    Raises:
        InputError: if there is no such text, or no validation text.
    """
    corpus = _corpus(config)
    if not corpus.validation:
        raise InputError(f"The text {config.path or config.source} has no validation.")
    vocabulary = text.load_vocabulary(
        config.tokens, corpus.train, cache, config.lower_case, config.minimum_count
    )
    return Text(vocabulary, *(vocabulary.encode(split) for split in corpus))


def training_segments(config, ids):
    """Returns the examples of one epoch, all segments of the same length."""
    segments = text.segments(ids, config.batch_size, config.length, drop_remainder=True)
    return segments.map(deq_keras.models.NextTokenLossModel.examples)


def evaluation_segments(config, ids):
    """Returns the examples of an evaluation, its last segment shorter."""
    segments = text.segments(
        ids, config.evaluation_batch_size, config.evaluation_length
    )
    return segments.map(deq_keras.models.NextTokenLossModel.examples)


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
