"""The text of a language model, as segments of token ids."""

from collections.abc import Callable
from typing import NamedTuple

import keras_hub
import numpy as np

import deq_keras

from ...data import text
from ...errors import InputError


class Text(NamedTuple):
    """A text as token ids.

    Attributes:
        tokenizer: KerasHub `Tokenizer` of the ids.
        train: Int32 array `(num_tokens,)`. Training text.
        validation: Int32 array `(num_tokens,)`. Validation text.
        test: Int32 array `(num_tokens,)`. Test text, which may be empty.
        keep_vocabulary: Function that writes the vocabulary into a folder.
    """

    tokenizer: keras_hub.tokenizers.Tokenizer
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    keep_vocabulary: Callable


def find(config, cache=None):
    """Returns the `Text` of a `TextConfig`.

    Args:
        config: The `TextConfig`.
        cache: Optional path of a folder that may contain the vocabulary.

    Raises:
        InputError: If the text or the validation text does not exist.
    """
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
    ids = (
        text.encode(tokenizer, split, f"{name} text")
        for name, split in zip(("training", "validation", "test"), corpus, strict=True)
    )
    return Text(tokenizer, *ids, keep)


def training_segments(config, ids, first_step=0):
    """Returns the examples of the training steps from `first_step`.

    All segments have the same length. If epochs are passes over the text, one iteration
    over the dataset is an epoch. Otherwise, the dataset is infinite.
    """
    segments = text.segments(ids, config.batch_size, config.length, drop_remainder=True)
    start = first_step % int(segments.cardinality())
    if start or config.steps_per_epoch is not None:
        segments = segments.repeat().skip(start)
    return segments.map(deq_keras.models.NextTokenLossModel.examples)


def evaluation_segments(config, ids):
    """Returns the examples of an evaluation. The last segment may be shorter."""
    segments = text.segments(
        ids, config.evaluation_batch_size, config.evaluation_length
    )
    return segments.map(deq_keras.models.NextTokenLossModel.examples)


def _corpus(config):
    if config.source == "embedded":
        if config.path is not None:
            raise InputError(
                "The embedded text takes no `data.path`. For a text of your own, set "
                "`data.source` to file or directory. "
                f"Received: source=embedded, path={config.path}."
            )
        return text.load_embedded()
    if config.path is None:
        raise InputError(
            f"`data.source: {config.source}` needs a `data.path`. Received: path=null."
        )
    if config.source == "file":
        return text.from_file(config.path, config.validation_fraction)
    return text.from_directory(config.path)
